// The npm package `openai` as its README uses it, against the server.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.SGLANG_URL}/v1`,
  apiKey: process.env.SGLANG_KEY,
  maxRetries: 0,
  timeout: 60_000,
});
const messages = [{ role: "user", content: "What is 17 + 25?" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const called = [];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters,
    parse: JSON.parse,
    function: ({ city }) => {
      called.push(city);
      return "sunny";
    },
  },
};

test("models", async () => {
  const found = [];
  for await (const model of client.models.list()) found.push(model.id);
  assert.equal(found.length, 1);
  assert.equal((await client.models.retrieve(found[0])).id, found[0]);
});

test("chat", async () => {
  const { data, response, request_id } = await client.chat.completions
    .create({ model: "m", messages, temperature: 0 })
    .withResponse();
  assert.equal(data.choices[0].message.content, "42");
  assert.equal(response.headers.get("x-request-id"), request_id);
  assert.ok(request_id);
});

test("stream", async () => {
  const stream = await client.chat.completions.create({
    model: "m",
    messages,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "42");
  assert.ok(usage.completion_tokens > 0);
});

test("stream helper, and leaving one early", async () => {
  const stream = client.chat.completions.stream({ model: "m", messages, temperature: 0 });
  assert.equal(await stream.finalContent(), "42");
  const long = await client.chat.completions.create({
    model: "m",
    messages,
    max_tokens: 2000,
    ignore_eos: true,
    stream: true,
  });
  for await (const chunk of long) if (chunk.choices[0].delta.content) break;
});

test("structured output", async () => {
  const answer = await client.chat.completions.parse({
    model: "m",
    messages: [{ role: "user", content: "Weather in Paris?" }],
    response_format: { type: "json_schema", json_schema: { name: "w", schema: parameters } },
  });
  assert.ok(["Paris", "Oslo"].includes(JSON.parse(answer.choices[0].message.content).city));
});

test("tools", async () => {
  const asked = { model: "m", messages, tools: [weather], temperature: 0, max_tokens: 64 };
  const runner = client.chat.completions.runTools(
    { ...asked, tool_choice: "required", parallel_tool_calls: false },
    { maxChatCompletions: 1 },
  );
  await runner.done();
  assert.equal(called.length, 1);
  assert.ok(["Paris", "Oslo"].includes(called[0]));
});

test("embeddings are asked for in base64", async () => {
  const whole = await client.embeddings.create({ model: "m", input: ["the lamp", "the rope"] });
  const plain = await client.embeddings.create({
    model: "m",
    input: ["the lamp", "the rope"],
    encoding_format: "float",
  });
  whole.data.forEach((item, i) =>
    item.embedding.forEach((value, j) =>
      assert.ok(Math.abs(value - plain.data[i].embedding[j]) < 1e-6),
    ),
  );
});

test("responses", async () => {
  const asked = { model: "m", input: "What is 17 + 25?", temperature: 0, max_output_tokens: 16 };
  const answer = await client.responses.create(asked);
  assert.ok(answer.output_text);
  assert.equal((await client.responses.retrieve(answer.id)).output_text, answer.output_text);
  let text = "";
  let last;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.match(last.type, /^response\.(completed|incomplete)$/);
  assert.equal(text, answer.output_text);
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ model: "m", messages, top_p: 2 }), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError);
    assert.equal(e.param, "top_p");
    return true;
  });
  const other = client.withOptions({ apiKey: "wrong" });
  await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
});
