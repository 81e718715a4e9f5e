// A Twostroke client in a page: the proto is loaded as it is, no code is generated.
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const PROTO_ROOT = fileURLToPath(new URL('../../protos', import.meta.url));

const definition = protoLoader.loadSync('twostroke/v1/generation.proto', {
  includeDirs: [PROTO_ROOT],
  keepCase: true, // field names as in the proto
  longs: Number,
  enums: String,
  defaults: true, // an absent field reads as its default, not as undefined
});
const { GenerationService } = grpc.loadPackageDefinition(definition).twostroke.v1;

/** A connection to the server at `address` (host:port). Close it with `close()`. */
export function connect(address) {
  return new GenerationService(address, grpc.credentials.createInsecure());
}

/**
 * Streams the answer to `request`, a twostroke.v1.GenerateRequest as an object. Leaving the loop
 * early (break, return, throw) cancels the request, so that the server stops working on it. A failure
 * is thrown as the Error of gRPC, with `code` and `details`. A stream that breaks is not resumed here;
 * the message Resume in the proto says how that is done.
 */
export async function* generate(client, request, { timeoutMs } = {}) {
  const deadline = timeoutMs === undefined ? undefined : new Date(Date.now() + timeoutMs);
  const call = client.Generate(request, { deadline });
  try {
    yield* call;
  } finally {
    call.cancel();
  }
}
