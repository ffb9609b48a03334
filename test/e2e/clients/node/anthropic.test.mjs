// The npm package `@anthropic-ai/sdk` as its README uses it, against the server.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({
  baseURL: process.env.SGLANG_URL,
  apiKey: process.env.SGLANG_KEY,
  maxRetries: 0,
  timeout: 60_000,
});
const asked = {
  model: "claude",
  max_tokens: 16,
  temperature: 0,
  messages: [{ role: "user", content: "What is 17 + 25?" }],
};
const weather = {
  name: "get_weather",
  input_schema: {
    type: "object",
    properties: { city: { type: "string", enum: ["Paris", "Oslo"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

test("message", async () => {
  const message = await client.messages.create(asked);
  assert.deepEqual(message.content, [{ type: "text", text: "42" }]);
  assert.equal(message.stop_reason, "end_turn");
  assert.ok(message._request_id);
});

test("streams", async () => {
  let text = "";
  const stream = client.messages.stream(asked).on("text", (piece) => (text += piece));
  assert.equal((await stream.finalMessage()).content[0].text, "42");
  assert.equal(text, "42");
  const kinds = [];
  for await (const event of await client.messages.create({ ...asked, stream: true }))
    kinds.push(event.type);
  assert.equal(kinds[0], "message_start");
  assert.equal(kinds.at(-1), "message_stop");
});

test("tools", async () => {
  const message = await client.messages.create({
    ...asked,
    max_tokens: 64,
    tools: [weather],
    tool_choice: { type: "any", disable_parallel_tool_use: true },
  });
  assert.equal(message.stop_reason, "tool_use");
  const call = message.content.find((block) => block.type === "tool_use");
  assert.ok(["Paris", "Oslo"].includes(call.input.city));
  const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
  const after = await client.messages.create({
    ...asked,
    tools: [weather],
    messages: [
      ...asked.messages,
      { role: "assistant", content: message.content },
      { role: "user", content: [result] },
    ],
  });
  assert.equal(after.role, "assistant");
});

test("tokens and models", async () => {
  const { model, messages } = asked;
  assert.ok((await client.messages.countTokens({ model, messages })).input_tokens > 4);
  const found = [];
  for await (const card of client.models.list()) found.push(card.id);
  assert.equal(found.length, 1);
});

test("errors", async () => {
  await assert.rejects(client.messages.create({ ...asked, top_p: 2 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    return true;
  });
  const other = client.withOptions({ apiKey: "wrong" });
  await assert.rejects(other.messages.create(asked), Anthropic.AuthenticationError);
});
