// Calls whose requests are a stream. A browser cannot stream a request with fetch, and fetch reports no progress: the
// requests are one body here, which is sent as a whole.

import { type DescMessage, type DescMethod, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { endStreamFromJson, errorFromJsonBytes } from "@connectrpc/connect/protocol-connect";
import { authorized, baseUrl } from "./api";

export const ENVELOPE_BYTES = 5;
const LAST = 2;

/** Returns a message of a stream with its length before it. */
export function enveloped(message: Uint8Array): Uint8Array<ArrayBuffer> {
  const found = new Uint8Array(ENVELOPE_BYTES + message.length);
  new DataView(found.buffer).setUint32(1, message.length);
  found.set(message, ENVELOPE_BYTES);
  return found;
}

interface StreamOptions {
  signal: AbortSignal;
  /** Receives the part that was sent, from 0 to 1. */
  onProgress: (share: number) => void;
}

/** Sends the enveloped messages of a body, and returns the response. Throws a ConnectError, as the other calls do. */
export async function callWithStream<O extends DescMessage>(
  method: DescMethod & { output: O },
  body: Blob,
  options: StreamOptions,
): Promise<MessageShape<O>> {
  return responseOf(method.output, await authorized((token) => send(method, body, token, options), options.signal));
}

function send(method: DescMethod, body: Blob, token: string, { signal, onProgress }: StreamOptions): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", `${baseUrl}/${method.parent.typeName}/${method.name}`);
    request.responseType = "arraybuffer";
    request.setRequestHeader("content-type", "application/connect+proto");
    request.setRequestHeader("connect-protocol-version", "1");
    if (token) {
      request.setRequestHeader("authorization", `Bearer ${token}`);
    }
    request.upload.onprogress = ({ loaded, total }) => onProgress(total ? loaded / total : 1);
    request.onload = () => {
      if (request.status === 200) {
        resolve(new Uint8Array(request.response as ArrayBuffer));
      } else {
        const code = request.status === 401 ? Code.Unauthenticated : Code.Unknown;
        const refused = new ConnectError(`The gateway refuses the request with status ${request.status}.`, code);
        reject(errorFrom(new Uint8Array(request.response as ArrayBuffer), refused));
      }
    };
    request.onerror = () => reject(new ConnectError("The connection broke.", Code.Unavailable));
    request.onabort = () => reject(new ConnectError("The call was cancelled.", Code.Canceled));
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
function responseOf<O extends DescMessage>(schema: O, answer: Uint8Array): MessageShape<O> {
  let response: MessageShape<O> | undefined;
  for (let start = 0; start + ENVELOPE_BYTES <= answer.length; ) {
    const size = new DataView(answer.buffer, answer.byteOffset + start).getUint32(1);
    const message = answer.subarray(start + ENVELOPE_BYTES, start + ENVELOPE_BYTES + size);
    if (answer[start]! & LAST) {
      const { error } = endStreamFromJson(message);
      if (error) {
        throw error;
      }
    } else {
      response = fromBinary(schema, message);
    }
    start += ENVELOPE_BYTES + size;
  }
  if (!response) {
    throw new ConnectError("The gateway has not answered.", Code.Unavailable);
  }
  return response;
}
