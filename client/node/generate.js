#!/usr/bin/env node
// node generate.js "a question" [most tokens]
// Streams the answer; Ctrl-C cancels it. TWOSTROKE_ADDRESS names the server.
import { connect, generate } from './twostroke.js';

const [question, maxTokens = '200'] = process.argv.slice(2);
if (question === undefined) {
  console.error('usage: node generate.js "a question" [most tokens]');
  process.exit(2);
}

const client = connect(process.env.TWOSTROKE_ADDRESS ?? 'localhost:50051');
const request = {
  chat: { messages: [{ role: 'user', content: question }] },
  stop: { max_tokens: Number(maxTokens) },
};
let interrupted = false;
process.once('SIGINT', () => {
  interrupted = true;
});

try {
  for await (const piece of generate(client, request)) {
    process.stdout.write(piece.text);
    if (piece.finish) {
      console.error(`\n${piece.finish.usage.output_tokens} tokens, ${piece.finish.reason}`);
    }
    if (interrupted) break;
  }
} catch (error) {
  console.error(`\nerror ${error.code}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
if (interrupted) {
  console.error('\ncancelled');
  process.exitCode = 130;
}
