"""The settings of the files service; the only reader of the environment."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mnemesh_kit.config import fixed
from mnemesh_kit.services import service
from mnemesh_kit.sql import SqlConfig
from mnemesh_sandbox import Level, SandboxSettings
from mnemesh_sandbox.egress.downloads import DownloadLimits
from mnemesh_sandbox.egress.policy import EgressPolicy, IpNetwork, NetworkAccess

from mnemesh_files.blobs.s3 import S3Settings
from mnemesh_files.parsers.document import ParseLimits
from mnemesh_files.parsers.parser import sandbox_settings

_DOWNLOAD_SECONDS: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class Config(SqlConfig):
    """The settings. Each is read from `MNEMESH_FILES_<FIELD>`, or else from `MNEMESH_<FIELD>`."""

    port: int = service("files").port
    archival_target: str = service("archival").default_target
    orchestrator_target: str = service("orchestrator").default_target
    s3_bucket: str = ""
    """The bucket of the contents. Unset: they are in a directory."""
    s3_prefix: str = ""
    """Begins every key in the bucket."""
    s3_endpoint_url: str = ""
    """The S3-compatible server. Unset: AWS."""
    s3_region: str = ""
    s3_access_key_id: str = ""
    """Unset: credentials are looked up as the AWS SDK does."""
    s3_secret_access_key: str = field(default="", repr=False)
    workers: int = 2
    """The number of files that are processed, and of documents that are parsed, at the same time."""
    max_uploads: int = fixed(100)
    """The number of unfinished uploads that an organization can have."""
    imports: Literal["none", "any"] = "any"
    """Whether files are downloaded from URLs."""
    private_networks: str = ""
    """Networks such as "10.1.0.0/16,192.168.7.5/32" from which files may be downloaded although they are not public."""
    max_file_mb: int = 1024
    """The largest content of a file, in MB."""
    organization_mb: int = 0
    """The contents of all files of an organization together, in MB; 0 is unlimited."""
    min_sandbox: Literal["minimal", "restricted", "full"] = "restricted"
    """The lowest isolation level at which documents are parsed. Text files are parsed at any level."""
    parse_memory_mb: int = 1024
    """The memory of one parser."""
    warm_processes: int = 1
    """Sandbox processes that wait for a document; 0 starts one for each."""
    vision_base_url: str = ""
    """The URL of an OpenAI-compatible API whose model reads images, for example "https://api.openai.com/v1". Unset:
    images have no text."""
    vision_model: str = ""
    """The model at that API."""
    vision_api_key: str = field(default="", repr=False)
    """The key for that API."""
    cgroup: str = ""
    """A directory of cgroups of version 2 for those of parsers. Unset: the service's own, if systemd delegated it."""

    def __post_init__(self) -> None:
        """Refuses limits with which nothing could be stored."""
        self._private_networks()
        if bool(self.vision_base_url) != bool(self.vision_model):
            raise ValueError("MNEMESH_FILES_VISION_BASE_URL and MNEMESH_FILES_VISION_MODEL must be set together.")
        if self.warm_processes < 0:
            raise ValueError("MNEMESH_FILES_WARM_PROCESSES must not be negative.")
        for name in ("workers", "max_file_mb"):
            if getattr(self, name) < 1:
                raise ValueError(f"MNEMESH_FILES_{name.upper()} must be at least 1.")
        if self.organization_mb < 0:
            raise ValueError("MNEMESH_FILES_ORGANIZATION_MB must not be negative.")
        if self.parse_memory_mb < 256:
            raise ValueError("MNEMESH_FILES_PARSE_MEMORY_MB must be at least 256.")

    @property
    def s3(self) -> S3Settings | None:
        """The bucket of the contents, if there is one."""
        if not self.s3_bucket:
            return None
        return S3Settings(
            bucket=self.s3_bucket,
            prefix=self.s3_prefix,
            endpoint_url=self.s3_endpoint_url,
            region=self.s3_region,
            access_key_id=self.s3_access_key_id,
            secret_access_key=self.s3_secret_access_key,
        )

    def _private_networks(self) -> tuple[IpNetwork, ...]:
        networks = [text.strip() for text in self.private_networks.split(",") if text.strip()]
        try:
            return tuple(ipaddress.ip_network(text) for text in networks)
        except ValueError as error:
            raise ValueError(f"MNEMESH_FILES_PRIVATE_NETWORKS must be a list of networks: {error}.") from error

    @property
    def egress(self) -> EgressPolicy:
        """The rules of downloads."""
        access = NetworkAccess.ANY if self.imports == "any" else NetworkAccess.NONE
        return EgressPolicy(
            access=access,
            private_networks=self._private_networks(),
            networks_setting="MNEMESH_FILES_PRIVATE_NETWORKS",
        )

    @property
    def downloads(self) -> DownloadLimits:
        return DownloadLimits(max_bytes=self.max_file_mb * 1024 * 1024, seconds=_DOWNLOAD_SECONDS)

    @property
    def parsing(self) -> ParseLimits:
        """The limits of one document."""
        return ParseLimits(memory_mb=self.parse_memory_mb)

    @property
    def sandbox(self) -> SandboxSettings:
        """The limits of every parser."""
        minimum = Level[self.min_sandbox.upper()]
        return sandbox_settings(SandboxSettings(minimum=minimum, cgroup=self.cgroup), self.parsing)

    @property
    def blobs_path(self) -> Path:
        """The directory of the local blob store."""
        return self.data_path / "files"
