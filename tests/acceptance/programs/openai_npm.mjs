// OpenAI's own client for Node: whole answers, streams, a forced call, errors as its classes.
import assert from "node:assert/strict";
import OpenAI from "openai";

const model = process.env.ACCEPTANCE_MODEL;
const client = new OpenAI({ maxRetries: 0 });
const messages = [{ role: "user", content: "Say hi." }];

const models = await client.models.list();
assert.ok(models.data.some((known) => known.id === model));

const chat = await client.chat.completions.create({ model, messages, max_completion_tokens: 8 });
assert.ok(chat.choices[0].message.content);

let usage = null;
let said = "";
const stream = await client.chat.completions.create({
  model,
  messages,
  max_tokens: 8,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  said += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.ok(said);
assert.ok(usage.completion_tokens > 0);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const called = await client.chat.completions.create({
  model,
  messages,
  tools: [{ type: "function", function: { name: "weather", parameters } }],
  tool_choice: "required",
  max_tokens: 200,
  temperature: 0,
});
JSON.parse(called.choices[0].message.tool_calls[0].function.arguments);

await assert.rejects(client.chat.completions.create({ model: "no-such", messages }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ model, messages, temperature: 9 }), OpenAI.BadRequestError);
