// Runs against the server at TWOSTROKE_ADDRESS, whatever its model: prompts are token ids.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import grpc from '@grpc/grpc-js';
import { connect, generate } from '../twostroke.js';

const address = process.env.TWOSTROKE_ADDRESS;
assert.ok(address, 'TWOSTROKE_ADDRESS must name a running server');
const client = connect(address);
after(() => client.close());

const prompt = { token_ids: { ids: [5, 6, 7] } };

test('streams a whole answer without a gap', async () => {
  const request = { ...prompt, stop: { max_tokens: 20, ignore_eos: true } };
  let count = 0;
  let finish;
  for await (const piece of generate(client, request, { timeoutMs: 60_000 })) {
    assert.equal(piece.first_index, count);
    count += piece.token_ids.length;
    finish = piece.finish ?? finish;
  }
  assert.equal(count, 20);
  assert.equal(finish.reason, 'FINISH_REASON_LENGTH');
  assert.equal(finish.usage.prompt_tokens, 3);
});

test('the same seed gives the same tokens', async () => {
  const request = { ...prompt, sampling: { seed: 1 }, stop: { max_tokens: 10, ignore_eos: true } };
  const run = async () => {
    const tokens = [];
    for await (const piece of generate(client, request)) tokens.push(...piece.token_ids);
    return tokens;
  };
  assert.deepEqual(await run(), await run());
});

test('a cancelled answer ends, and the server goes on', async () => {
  // As long as the model allows, so that it is not over before it is cancelled.
  const request = { ...prompt, stop: { ignore_eos: true } };
  let pieces = 0;
  for await (const piece of generate(client, request, { timeoutMs: 60_000 })) {
    assert.ok(!piece.finish, 'it ended before it was cancelled');
    pieces += 1;
    if (pieces === 3) break;
  }
  assert.equal(pieces, 3);
  const next = [];
  for await (const piece of generate(client, { ...prompt, stop: { max_tokens: 2 } })) next.push(piece);
  assert.ok(next.at(-1).finish);
});

test('a wrong field is named in the status', async () => {
  const request = { ...prompt, sampling: { top_p: 2 } };
  await assert.rejects(
    async () => {
      for await (const _ of generate(client, request)) assert.fail('nothing must come');
    },
    (error) => error.code === grpc.status.INVALID_ARGUMENT && /top_p/.test(error.details),
  );
});
