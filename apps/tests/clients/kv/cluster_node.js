// Checks of node-redis's cluster client on a cluster whose map changes. Usage: cluster_node.js HOST PORT, with TLS
// if TLS_CA names an authority. A failed check exits with 1.

'use strict';

const assert = require('node:assert').strict;
const { readFileSync } = require('node:fs');
const { createCluster } = require('redis');

const [host, port] = process.argv.slice(2);
const TIMEOUT = 20_000;
const TLS = process.env.TLS_CA ? { tls: true, ca: readFileSync(process.env.TLS_CA) } : {};
const NAMES = Array.from({ length: 500 }, (_, n) => `key:${n}`);

async function works(cluster) {
    const set = await Promise.all(NAMES.map((name) => cluster.set(name, name)));
    assert.ok(set.every((reply) => reply === 'OK'));
    assert.deepEqual(await Promise.all(NAMES.map((name) => cluster.get(name))), NAMES);
    assert.equal(await cluster.mSet([['{t}a', '1'], ['{t}b', '2']]), 'OK');
    assert.deepEqual(await cluster.mGet(['{t}a', '{t}absent', '{t}b']), ['1', null, '2']);
    assert.deepEqual(await cluster.multi().set('{t}a', '1').incr('{t}a').get('{t}b').exec(), ['OK', 2, '2']);
    await assert.rejects(cluster.mGet(NAMES), /CROSSSLOT/);
    assert.equal(await cluster.hSet('hash', { f: 1 }), 1);
    assert.equal(await cluster.del('hash'), 1);
    const removed = await Promise.all([...NAMES, '{t}a', '{t}b'].map((name) => cluster.del(name)));
    assert.ok(removed.every((count) => count === 1));
}

async function main() {
    const cluster = createCluster({ rootNodes: [{ socket: { host, port, ...TLS } }], defaults: { socket: TLS } });
    cluster.on('error', () => {});
    await cluster.connect();
    assert.equal(cluster.getMasters().length, 3);
    await works(cluster);
    console.log('ready for another map');
    const end = Date.now() + TIMEOUT;
    while ((await cluster.get('{map}changed')) === null) assert.ok(Date.now() < end);
    assert.equal(await cluster.del('{map}changed'), 1);
    await works(cluster);
    await cluster.quit();
    console.log('all is well');
}

main().catch((error) => {
    console.error(error);
    process.exit(1);
});
