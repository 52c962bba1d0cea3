// Uploads of files with their progress. The body is made of the file itself, so that it is not read into memory.

import { create, toBinary } from "@bufbuild/protobuf";
import {
  DuplicateHandling,
  FileService,
  UploadFileRequestSchema,
} from "../gen/mnemesh/files/v1/files_service_pb";
import { newRequestId } from "./api";
import { callWithStream, ENVELOPE_BYTES, enveloped } from "./client_stream";

/** What one request of the stream may carry. */
const PIECE_BYTES = 1_000_000;

interface UploadOptions {
  folderId: string;
  file: File;
  duplicateHandling: DuplicateHandling;
  signal: AbortSignal;
  /** Receives the part that was sent, from 0 to 1. */
  onProgress: (share: number) => void;
}

/** Stores a file in a folder. Throws a ConnectError, as the other calls do. */
export async function upload({ folderId, file, duplicateHandling, signal, onProgress }: UploadOptions) {
  const header = { folderId, originalName: file.name, duplicateHandling, sizeBytes: BigInt(file.size) };
  const first = create(UploadFileRequestSchema, {
    requestId: newRequestId(),
    part: { case: "header", value: { ...header, ...(file.type ? { mediaType: file.type } : {}) } },
  });
  const body: BlobPart[] = [enveloped(toBinary(UploadFileRequestSchema, first))];
  for (let start = 0; start < file.size; start += PIECE_BYTES) {
    const piece = file.slice(start, start + PIECE_BYTES);
    body.push(pieceHead(piece.size), piece);
  }
  return callWithStream(FileService.method.uploadFile, new Blob(body), { signal, onProgress });
}

/** Returns what stands before the bytes of a piece: the envelope, and the tag and the length of the field `data`. */
function pieceHead(size: number): Uint8Array<ArrayBuffer> {
  const whole = toBinary(UploadFileRequestSchema, create(UploadFileRequestSchema, {
    part: { case: "data", value: new Uint8Array(size) },
  }));
  return enveloped(whole).slice(0, ENVELOPE_BYTES + whole.length - size);
}
