// node_client.js PORT SOCKETS: 200 requests by a keep-alive agent, then streams.
'use strict';
const crypto = require('crypto');
const http = require('http');

const [port, maxSockets] = process.argv.slice(2).map(Number);
const agent = new http.Agent({ keepAlive: true, maxSockets });
const counts = { blobs: 0, hashes: 0, echoes: 0, sockets: 0 };

function sha256(data) {
  return crypto.createHash('sha256').update(data).digest('hex');
}

function expected(seed, length) {
  const parts = [];
  let block = crypto.createHash('sha512').update(String(seed)).digest();
  for (let have = 0; have < length; have += 64) {
    block = crypto.createHash('sha512').update(block).digest();
    parts.push(block);
  }
  return Buffer.concat(parts).subarray(0, length);
}

function request(method, path, send) {
  return new Promise((resolve, reject) => {
    const options = { host: '127.0.0.1', port, agent, method, path, timeout: 30000 };
    const call = http.request(options, (response) => {
      const parts = [];
      response.on('data', (data) => parts.push(data));
      response.on('end', () => resolve(Buffer.concat(parts)));
      response.on('aborted', () => reject(new Error(`${path} was cut off`)));
    });
    call.on('timeout', () => call.destroy(new Error(`${path}: nothing for 30 s`)));
    call.on('error', reject);
    if (send) send(call); else call.end();
  });
}

async function blob(n) {
  const length = n % 10 === 9 ? 2000000 : (n * 937) % 30000;
  const got = await request('GET', `/blob/${n}/${length}`);
  if (sha256(got) !== sha256(expected(n, length))) throw new Error(`blob ${n} differs`);
  counts.blobs++;
}

async function hash(n) {
  const data = crypto.randomBytes(1 + (n * 7919) % 100000);
  const got = await request('POST', '/hash', (call) => call.end(data));
  if (got.toString() !== sha256(data)) throw new Error(`hash ${n} differs`);
  counts.hashes++;
}

// Writes in pieces, each after the one before has left, while the answer comes.
async function echo(n) {
  const data = crypto.randomBytes(3000000);
  const got = await request('POST', '/echo', (call) => {
    let at = 0;
    const more = () => {
      while (at < data.length) {
        const piece = data.subarray(at, at + 10000 + n);
        at += piece.length;
        if (!call.write(piece)) return call.once('drain', more);
      }
      call.end();
    };
    more();
  });
  if (sha256(got) !== sha256(data)) throw new Error(`echo ${n} differs`);
  counts.echoes++;
}

async function main() {
  const count = () => counts.sockets++;
  const create = agent.createConnection;
  agent.createConnection = function (...args) { count(); return create.apply(this, args); };
  for (let n = 0; n < 40; n++) await blob(n);
  await Promise.all(Array.from({ length: 100 }, (_, n) => blob(n + 40)));
  await Promise.all(Array.from({ length: 60 }, (_, n) => hash(n)));
  await Promise.all(Array.from({ length: 6 }, (_, n) => echo(n)));
  agent.destroy();
  console.log(Object.entries(counts).map(([key, value]) => `${key}=${value}`).join(' '));
}

main().catch((error) => { console.error(error); process.exit(1); });
