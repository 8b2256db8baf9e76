// Drives a running worker (WORKER=host:port, scripted engine) through the three rpcs.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { CHAT, call, cancelling, connect, events, opening, pack, unpack } from "./channel.mjs";

const TEXT = "grüß 東京 🚀";
const CANCELLED = 1;
let client;

before(() => (client = connect(process.env.WORKER)));
after(() => client.close());

const chat = (script, fields = {}) => ({ model: "scripted", messages: [{ role: "user", content: script }], ...fields });
const saying = (fields) => chat(`[[text:${TEXT}]]`, fields);
const endless = (fields) => chat("[[itl_ms:5]] [[tokens:4000]]", { stream: true, max_tokens: 4000, ...fields });

async function inFlight() {
  const metrics = await (await fetch(`${process.env.WORKER_HTTP}/metrics`)).text();
  return Number(/^packrelay_worker_in_flight (\S+)$/m.exec(metrics)[1]);
}

async function untilIdle() {
  for (const deadline = Date.now() + 5000; await inFlight(); ) assert.ok(Date.now() < deadline, "the worker is still busy");
}

test("Call answers with one whole reply", async () => {
  const reply = await call(client, opening(saying(), { headers: { "x-packrelay-request-id": "from-node" } }));

  assert.equal(reply.kind, "REPLY");
  assert.equal(reply.headers.status, "200");
  assert.equal(reply.payload.id, "chatcmpl-from-node");
  assert.equal(reply.payload.choices[0].message.content, TEXT);
});

test("Call says what is wrong in its reply", async () => {
  const stream = await call(client, opening(saying({ stream: true })));
  const lost = await call(client, opening({}, { operation: "/nowhere" }));
  const broken = await call(client, { ...opening({}), payload: Buffer.from([0xc1]) });

  assert.deepEqual([stream.headers.status, stream.payload.error.param], ["400", "stream"]);
  assert.deepEqual([lost.headers.status, broken.headers.status], ["404", "400"]);
});

test("Call answers the side paths", async () => {
  const reply = await call(client, { kind: "OPEN", operation: "/server_info" });

  assert.equal(reply.payload.packrelay.engine, "scripted");
  assert.equal(`127.0.0.1:${reply.payload.packrelay.grpc_port}`, process.env.WORKER);
});

test("a seed of 64 bits is the same number on both sides", async () => {
  const said = [];
  for (const seed of [2n ** 63n - 1n, 2n ** 63n - 1n, 2n ** 63n - 2n]) {
    const reply = await call(client, opening(chat("dice", { seed, temperature: 1, max_tokens: 24 })));
    said.push(reply.payload.choices[0].message.content);
  }

  assert.equal(said[0], said[1]);
  assert.notEqual(said[1], said[2]);
});

test("Generate streams events that end with done", async () => {
  const seen = [];
  for await (const [stream, event] of events(client.Generate(opening(saying({ stream: true }))))) {
    assert.equal(stream, 0n);
    seen.push(event);
  }

  assert.equal(seen[0].type, "started");
  assert.equal(seen.map((event) => event.text ?? "").join(""), TEXT);
  assert.equal(seen.at(-1).type, "done");
  assert.equal(seen.at(-1).usage.completion_tokens, seen.at(-1).usage.total_tokens - seen[0].prompt_tokens);
});

test("cancelling Generate frees the worker", async () => {
  const rpc = client.Generate(opening(endless()));
  const ended = assert.rejects(
    async () => {
      for await (const [, event] of events(rpc)) if (event.type === "delta") rpc.cancel();
    },
    (error) => error.code === CANCELLED,
  );

  await ended;
  await untilIdle();
});

test("Exchange carries many requests, numbered beyond what a double holds", async () => {
  const rpc = client.Exchange();
  const first = 2n ** 53n + 1n;
  const texts = new Map();
  for (let index = 0n; index < 8n; index += 1n) {
    rpc.write(opening(chat(`[[text:number ${index}]]`, { stream: true }), { stream: first + index }));
  }
  rpc.end();
  for await (const [stream, event] of events(rpc)) texts.set(stream, (texts.get(stream) ?? "") + (event.text ?? ""));

  assert.equal(texts.size, 8);
  for (const [stream, text] of texts) assert.equal(text, `number ${stream - first}`);
});

test("CANCEL ends one request of an Exchange, and no other", async () => {
  const rpc = client.Exchange();
  let finished = false;
  rpc.write(opening(endless(), { stream: 1n }));
  for await (const [stream, event] of events(rpc)) {
    if (stream === 1n && event.type === "delta" && !finished) {
      finished = true;
      rpc.write(cancelling(1n));
      rpc.write(cancelling(1n));
      rpc.write(opening(saying({ stream: true }), { stream: 2n }));
    }
    if (stream === 2n && event.type === "done") rpc.end();
  }

  assert.ok(finished);
  await untilIdle();
});

test("PING comes back as it went", async () => {
  const rpc = client.Exchange();
  rpc.write({ kind: "PING", payload: pack("anybody?") });
  const [answer] = await new Promise((resolve) => rpc.once("data", (frame) => resolve([frame])));
  rpc.end();
  rpc.resume();

  assert.equal(answer.kind, "PING");
  assert.equal(unpack(answer.payload), "anybody?");
});

test("health is served beside the channel's own path", async () => {
  assert.equal((await call(client, { kind: "OPEN", operation: "/health" })).headers.status, "200");
  assert.equal(CHAT, "/v1/chat/completions");
});
