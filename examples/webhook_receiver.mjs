// Receives the events of a webhook and prints each once: `node webhook_receiver.mjs SECRET [PORT]`. It needs no packages.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const TOLERANCE_SECONDS = 300;

/** Returns whether a call is of the webhook with a secret, unchanged, and not an old one that is repeated. */
export function isSigned(secret, headers, body) {
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!(Math.abs(Date.now() / 1000 - Number(timestamp)) <= TOLERANCE_SECONDS)) return false;
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const digest = createHmac("sha256", key).update(`${headers["webhook-id"]}.${timestamp}.`).update(body).digest("base64");
  const expected = Buffer.from(`v1,${digest}`);
  return (headers["webhook-signature"] ?? "").split(" ").some((text) => {
    const given = Buffer.from(text);
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}

const [secret, port = "8090"] = process.argv.slice(2);
const seen = new Set(); // a program that restarts stores the ids

createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const body = Buffer.concat(pieces); // as it was received: parsed and written again, it would have another signature
  if (!isSigned(secret, request.headers, body)) {
    response.writeHead(401).end();
    return;
  }
  const id = request.headers["webhook-id"];
  if (!seen.has(id)) console.log(body.toString());
  seen.add(id);
  response.writeHead(204).end(); // within 10 seconds, otherwise the event is sent again
}).listen(Number(port), "127.0.0.1", function () {
  console.log(`http://127.0.0.1:${this.address().port}`);
});
