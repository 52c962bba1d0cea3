// The typed details of errors.

import { ClientError, Status } from "nice-grpc";
import { RichClientError } from "nice-grpc-error-details";

/** Returns the code of an error, its reason, and the field that is invalid. */
export function describe(error: unknown): string {
  if (!(error instanceof ClientError)) {
    throw error;
  }
  const words: string[] = [Status[error.code]];
  for (const detail of error instanceof RichClientError ? error.extra : []) {
    if (detail.$type === "google.rpc.ErrorInfo") {
      words.push(`reason ${detail.reason}`);
      words.push(...Object.entries(detail.metadata).sort().map(([key, value]) => `${key}=${value}`));
    } else if (detail.$type === "google.rpc.BadRequest") {
      words.push(...detail.fieldViolations.map((violation) => `field ${violation.field}: ${violation.description}`));
    }
  }
  return words.join(", ");
}

/** Prints an error. */
export function report(error: unknown): void {
  if (error instanceof ClientError) {
    console.error(`error ${describe(error)}: ${error.details}`);
  } else {
    console.error(`error ${error instanceof Error ? error.message : error}`);
  }
}
