// node_server.js PORT: GET /blob/SEED/LENGTH streams bytes; POST /hash answers
// with the SHA-256 of what it got; POST /echo sends it back while it comes.
'use strict';
const crypto = require('crypto');
const http = require('http');
const { Readable, pipeline } = require('stream');

function* chunks(seed, length) {
  let block = crypto.createHash('sha512').update(String(seed)).digest();
  for (let left = length; left > 0;) {
    const parts = [];
    for (let n = 0; n < 256; n++) {
      block = crypto.createHash('sha512').update(block).digest();
      parts.push(block);
    }
    const chunk = Buffer.concat(parts).subarray(0, left);
    left -= chunk.length;
    yield chunk;
  }
}

function broken(error) {
  if (error) console.error(String(error));
}

const server = http.createServer((request, response) => {
  const [, verb, seed, length] = request.url.split('/');
  if (verb === 'blob') {
    response.setHeader('Content-Length', length);
    pipeline(Readable.from(chunks(seed, Number(length))), response, broken);
  } else if (verb === 'hash') {
    const hash = crypto.createHash('sha256');
    request.on('data', (data) => hash.update(data));
    request.on('end', () => response.end(hash.digest('hex')));
  } else {
    pipeline(request, response, broken);
  }
});
server.keepAliveTimeout = 60000;
server.listen(Number(process.argv[2]), '127.0.0.1');
process.on('SIGTERM', () => process.exit(0));
