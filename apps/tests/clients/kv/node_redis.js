// Checks of features that users of node-redis rely on. Usage: node_redis.js HOST PORT [PASSWORD], with TLS
// if TLS_CA names an authority. A failed check exits with 1.

'use strict';

const assert = require('node:assert').strict;
const { readFileSync } = require('node:fs');
const { createClient, commandOptions, WatchError } = require('redis');

const [host, port, password] = process.argv.slice(2);
const TIMEOUT = 20_000;
const TLS = process.env.TLS_CA ? { tls: true, ca: readFileSync(process.env.TLS_CA) } : {};

async function connect(more = {}) {
    const client = createClient({ socket: { host, port: Number(port), connectTimeout: TIMEOUT, ...TLS }, password, ...more });
    // Errors are handled by the failing requests.
    client.on('error', () => {});
    await client.connect();
    return client;
}

async function waitFor(done) {
    const end = Date.now() + TIMEOUT;
    while (!(await done())) assert(Date.now() < end);
}

async function strings(client) {
    assert.equal(await client.ping(), 'PONG');
    assert.equal(await client.set('s', 'größe'), 'OK');
    assert.equal(await client.get('s'), 'größe');
    assert.equal(await client.set('s', 'x', { NX: true }), null);
    assert.equal(await client.set('s', 'x', { EX: 100, GET: true }), 'größe');
    assert.ok((await client.ttl('s')) > 98);
    assert.equal(await client.getEx('s', { PERSIST: true }), 'x');
    assert.equal(await client.ttl('s'), -1);
    await client.set('soon', 'x', { PX: 30 });
    await waitFor(async () => (await client.get('soon')) === null);
    await client.mSet([['a', '1'], ['b', '2']]);
    assert.deepEqual(await client.mGet(['a', 'absent', 'b']), ['1', null, '2']);
    assert.equal(await client.incrBy('a', 41), 42);
    assert.equal(await client.incrByFloat('a', 0.5), '42.5');
    assert.equal(await client.getDel('a'), '42.5');
    assert.equal(await client.exists(['a', 'b', 's']), 2);
}

async function hashes(client) {
    assert.equal(await client.hSet('h', { user: 'anna', hits: 1, empty: '' }), 3);
    assert.deepEqual({ ...(await client.hGetAll('h')) }, { user: 'anna', hits: '1', empty: '' });
    assert.equal(await client.hIncrBy('h', 'hits', 41), 42);
    assert.deepEqual(await client.hmGet('h', ['hits', 'absent']), ['42', null]);
    assert.equal(await client.hDel('h', ['user', 'absent']), 1);
    assert.equal(await client.hLen('h'), 2);
    const many = Object.fromEntries(Array.from({ length: 3000 }, (_, n) => [`f:${n}`, `${n}`]));
    await client.hSet('many', many);
    const seen = {};
    for await (const { field, value } of client.hScanIterator('many', { COUNT: 100 })) seen[field] = value;
    assert.deepEqual(seen, many);
}

async function scan(client) {
    const names = Array.from({ length: 2000 }, (_, n) => `k:${n}`);
    await Promise.all(names.map((name) => client.set(name, 'x')));
    const seen = new Set();
    for await (const key of client.scanIterator({ MATCH: 'k:*', COUNT: 100 })) seen.add(key);
    assert.deepEqual([...seen].sort(), names.sort());
    assert.equal(await client.dbSize(), 2000);
}

// Requests of one iteration of the event loop are pipelined.
async function pipelines(client) {
    const count = 10_000;
    const replies = [];
    for (let n = 0; n < count; n += 1) {
        replies.push(client.set(`p:${n}`, `${n}`), client.get(`p:${n}`));
    }
    const all = await Promise.all(replies);
    all.forEach((reply, n) => assert.equal(reply, n % 2 ? `${(n - 1) / 2}` : 'OK'));
}

async function transactions(client) {
    assert.deepEqual(await client.multi().set('t', '1').incr('t').mGet(['t', 'absent']).exec(), ['OK', 2, ['2', null]]);
    await client.set('watched', '1');
    await client.executeIsolated(async (isolated) => {
        await isolated.watch('watched');
        await client.set('watched', '2');
        await assert.rejects(isolated.multi().set('t', 'never').exec(), WatchError);
        await isolated.watch('watched');
        assert.deepEqual(await isolated.multi().set('t', 'now').exec(), ['OK']);
    });
    assert.equal(await client.get('t'), 'now');
    await assert.rejects(client.multi().set('t', 'never').addCommand(['NOSUCH']).exec(), /EXECABORT|unknown command/);
    assert.equal(await client.get('t'), 'now');
}

async function largeValues(client) {
    const options = commandOptions({ returnBuffers: true });
    for (const size of [4095, 4096, 100_000, 1 << 20]) {
        const value = Buffer.from(Array.from({ length: size }, (_, n) => (n * 31 + (n >> 8)) & 255));
        await client.set('large', value);
        const back = await client.get(options, 'large');
        assert.ok(value.equals(back), `${size} bytes`);
    }
}

async function errors(client) {
    await client.set('s', 'x');
    const said = (message) => ({ message });
    await assert.rejects(client.incr('s'), said('ERR value is not an integer or out of range'));
    await assert.rejects(
        client.hGet('s', 'f'),
        said('WRONGTYPE Operation against a key holding the wrong kind of value'),
    );
    await assert.rejects(
        client.sendCommand(['NOSUCH', 'a']),
        said("ERR unknown command 'NOSUCH', with args beginning with: 'a' "),
    );
    await assert.rejects(client.set('s', 'x', { EX: -1 }), said("ERR invalid expire time in 'set' command"));
    await assert.rejects(client.rename('absent', 'x'), said('ERR no such key'));
}

async function connections(client) {
    if (password) {
        const socket = { host, port: Number(port), reconnectStrategy: () => new Error('not again') };
        const wrong = createClient({ socket, password: 'x' });
        wrong.on('error', () => {});
        const isRefused = (error) => /^WRONGPASS invalid username-password pair/.test((error.socketError ?? error).message);
        await assert.rejects(wrong.connect(), isRefused);
    }
    const other = await connect({ database: 3, name: 'worker-7', username: password && 'default' });
    assert.equal(await other.clientGetName(), 'worker-7');
    await other.set('elsewhere', '1');
    assert.equal(await client.get('elsewhere'), null);
    assert.match(await client.info('server'), /redis_version/);
    const copy = client.duplicate();
    await copy.connect();
    assert.equal(await copy.ping(), 'PONG');
    await copy.quit();
    await other.flushDb();
    await other.quit();
}

async function main() {
    const client = await connect();
    const parts = [strings, hashes, scan, pipelines, transactions, largeValues, errors, connections];
    for (const part of parts) {
        await client.flushAll();
        await part(client);
    }
    await client.quit();
    console.log('all is well');
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
