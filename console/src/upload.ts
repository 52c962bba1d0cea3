// Uploads of files with their progress. A browser cannot stream a request with fetch, and fetch reports no progress: the
// requests of the stream are one body here, made of the file itself, so that it is not read into memory.

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { endStreamFromJson, errorFromJsonBytes } from "@connectrpc/connect/protocol-connect";
import {
  DuplicateHandling,
  FileService,
  UploadFileRequestSchema,
  type UploadFileResponse,
  UploadFileResponseSchema,
} from "../gen/mnemesh/files/v1/files_service_pb";
import { baseUrl, needsToken, newRequestId, token } from "./api";

/** What one request of the stream may carry. */
const PIECE_BYTES = 1_000_000;
const ENVELOPE_BYTES = 5;
const LAST = 2;

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
  const answer = await send(new Blob(body), signal, onProgress);
  return responseOf(answer);
}

function enveloped(message: Uint8Array): Uint8Array<ArrayBuffer> {
  const found = new Uint8Array(ENVELOPE_BYTES + message.length);
  new DataView(found.buffer).setUint32(1, message.length);
  found.set(message, ENVELOPE_BYTES);
  return found;
}

/** Returns what stands before the bytes of a piece: the envelope, and the tag and the length of the field `data`. */
function pieceHead(size: number): Uint8Array<ArrayBuffer> {
  const whole = toBinary(UploadFileRequestSchema, create(UploadFileRequestSchema, {
    part: { case: "data", value: new Uint8Array(size) },
  }));
  return enveloped(whole).slice(0, ENVELOPE_BYTES + whole.length - size);
}

function send(body: Blob, signal: AbortSignal, onProgress: (share: number) => void): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const { typeName } = FileService;
    request.open("POST", `${baseUrl}/${typeName}/${FileService.method.uploadFile.name}`);
    request.responseType = "arraybuffer";
    request.setRequestHeader("content-type", "application/connect+proto");
    request.setRequestHeader("connect-protocol-version", "1");
    if (token.peek()) {
      request.setRequestHeader("authorization", `Bearer ${token.peek()}`);
    }
    request.upload.onprogress = ({ loaded, total }) => onProgress(total ? loaded / total : 1);
    request.onload = () => {
      if (request.status === 401) {
        needsToken.value = true;
      }
      if (request.status === 200) {
        resolve(new Uint8Array(request.response as ArrayBuffer));
      } else {
        const refused = new ConnectError(`The gateway refuses the upload with status ${request.status}.`, Code.Unknown);
        reject(errorFrom(new Uint8Array(request.response as ArrayBuffer), refused));
      }
    };
    request.onerror = () => reject(new ConnectError("The connection broke.", Code.Unavailable));
    request.onabort = () => reject(new ConnectError("The upload was cancelled.", Code.Canceled));
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.send(body);
  });
}

/** Returns the error of a call that was refused before its method, which is JSON unless a proxy wrote it. */
function errorFrom(body: Uint8Array, otherwise: ConnectError): ConnectError {
  try {
    return errorFromJsonBytes(body, undefined, otherwise);
  } catch {
    return otherwise;
  }
}

/** Returns the only response of a stream. The stream ends with an envelope that may have an error. */
function responseOf(answer: Uint8Array): UploadFileResponse {
  let response: UploadFileResponse | undefined;
  for (let start = 0; start + ENVELOPE_BYTES <= answer.length; ) {
    const size = new DataView(answer.buffer, answer.byteOffset + start).getUint32(1);
    const message = answer.subarray(start + ENVELOPE_BYTES, start + ENVELOPE_BYTES + size);
    if (answer[start]! & LAST) {
      const { error } = endStreamFromJson(message);
      if (error) {
        throw error;
      }
    } else {
      response = fromBinary(UploadFileResponseSchema, message);
    }
    start += ENVELOPE_BYTES + size;
  }
  if (!response) {
    throw new ConnectError("The gateway has not answered the upload.", Code.Unavailable);
  }
  return response;
}
