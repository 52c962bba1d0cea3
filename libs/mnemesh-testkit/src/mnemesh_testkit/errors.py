"""The errors with which calls are refused."""

from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from mnemesh_kit.errors import MnemeshError, from_rpc_error


async def catch_refusal(call: Awaitable[Any]) -> MnemeshError:
    """Returns the error with which a call is refused, in process or over the wire."""
    try:
        answer = await call
    except MnemeshError as error:
        return error
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    pytest.fail(f"The call was not refused: {answer}")
