// The channel as a client of another language sees it: proto/channel.proto is loaded as it stands, payloads are msgpack.
// 64-bit numbers are BigInt throughout: a stream's number and an id of a request may be larger than a double holds exactly.

import { fileURLToPath } from "node:url";

import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { decode, encode } from "@msgpack/msgpack";

const PROTO = fileURLToPath(new URL("../../proto/channel.proto", import.meta.url));
const TAGGED = { "x-trtllm-msgpack": "1" };

// `longs: String` keeps every digit of a uint64 (a JavaScript number would not); it is a BigInt from `received` on.
const { Channel } = loadPackageDefinition(loadSync(PROTO, { keepCase: true, longs: String, enums: String })).packrelay.v1;

export const CHAT = "/v1/chat/completions";

export function connect(address) {
  return new Channel(address, credentials.createInsecure());
}

export const pack = (value) => encode(value, { useBigInt64: true });
export const unpack = (bytes) => decode(bytes, { useBigInt64: true });

export function opening(body, { stream = 0n, operation = CHAT, headers = {} } = {}) {
  return { stream: String(stream), kind: "OPEN", operation, headers: { ...TAGGED, ...headers }, payload: pack(body) };
}

export function cancelling(stream) {
  return { stream: String(stream), kind: "CANCEL" };
}

// A frame as it is worked with: the number a BigInt, the payload decoded.
export function received(frame) {
  const payload = frame.payload?.length ? unpack(frame.payload) : undefined;
  return { ...frame, stream: BigInt(frame.stream ?? 0), payload };
}

export function call(client, frame) {
  return new Promise((resolve, reject) => {
    client.Call(frame, (error, reply) => (error ? reject(error) : resolve(received(reply))));
  });
}

// The events of a call that streams frames, as [stream, event]; a REPLY in their place is thrown.
export async function* events(rpc) {
  for await (const frame of rpc) {
    const { kind, headers, payload } = received(frame);
    if (kind === "REPLY") throw Object.assign(new Error(payload.error?.message), { status: headers.status, ...payload });
    if (kind !== "EVENTS") continue;
    for (const [stream, event] of payload) yield [BigInt(stream), event];
  }
}
