// Every golden frame says in msgpack what its neighbour says in JSON, down to the last digit of its integers.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

import { pack, unpack } from "./channel.mjs";

const GOLDEN = fileURLToPath(new URL("../../schemas/generated/golden/", import.meta.url));
const FRAMES = readdirSync(GOLDEN, { recursive: true }).filter((path) => path.endsWith(".msgpack"));

// JSON.parse would round integers beyond 2^53: here each integer is marked before it is parsed, and is a BigInt afterwards.
const NUMBERS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const parse = (text) =>
  JSON.parse(
    text.replace(NUMBERS, (token) => (/^-?\d+$/.test(token) ? `"\\u0000int:${token}"` : token)),
    (_key, value) => (typeof value === "string" && value.startsWith("\0int:") ? BigInt(value.slice(5)) : value),
  );

// The decoder gives small integers as numbers and large ones as BigInt, and bytes, which JSON has as base64.
function plain(value) {
  if (Number.isSafeInteger(value)) return BigInt(value);
  if (value instanceof Uint8Array) return Buffer.from(value).toString("base64");
  if (Array.isArray(value)) return value.map(plain);
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, plain(part)]));
  }
  return value;
}

// A float that is whole is written 1.0 in JSON and is no integer there; JavaScript cannot tell the two apart.
const whole = (value) => JSON.parse(JSON.stringify(value, (_key, part) => (typeof part === "bigint" ? `${part}` : numeral(part))));
const numeral = (part) => (typeof part === "number" && Number.isInteger(part) ? `${BigInt(part)}` : part);

test("there are frames", () => assert.ok(FRAMES.length >= 50));

for (const path of FRAMES) {
  test(`${path} is its JSON`, () => {
    const value = unpack(readFileSync(GOLDEN + path));
    const expected = parse(readFileSync(GOLDEN + path.replace(/msgpack$/, "json"), "utf8"));

    assert.deepEqual(whole(plain(value)), whole(expected));
    assert.deepEqual(plain(unpack(pack(value))), plain(value));
  });
}
