"""Checks of redis-py's RedisCluster on a cluster whose map changes. Usage: cluster_py.py HOST PORT,
with TLS if TLS_CA names an authority.

A failed check ends with a traceback."""

import os
import sys
import time

import redis
from redis.cluster import RedisCluster

HOST, PORT = sys.argv[1], int(sys.argv[2])
TIMEOUT = 20
TLS = {"ssl": True, "ssl_ca_certs": os.environ["TLS_CA"]} if "TLS_CA" in os.environ else {}
ALL = RedisCluster.PRIMARIES
NAMES = [f"key:{n}" for n in range(500)]


def fails(what, said):
    try:
        what()
    except redis.RedisError as error:
        assert said in str(error), repr(error)
    else:
        raise AssertionError(f"not '{said}'")


def works(r):
    for name in NAMES:
        assert r.set(name, name) and r.get(name) == name.encode()
    assert r.dbsize(target_nodes=ALL) == len(NAMES)
    assert sorted(r.keys("key:*", target_nodes=ALL)) == sorted(name.encode() for name in NAMES)
    assert sorted(r.scan_iter("key:*", count=50)) == sorted(name.encode() for name in NAMES)
    assert r.mset({"{t}a": 1, "{t}b": 2}) and r.mget("{t}a", "{t}absent", "{t}b") == [b"1", None, b"2"]
    assert r.mset_nonatomic({name: "x" for name in NAMES}) and r.mget_nonatomic(NAMES) == [b"x"] * len(NAMES)
    assert r.exists(*NAMES) == len(NAMES)
    with r.pipeline() as pipeline:
        for name in NAMES:
            pipeline.get(name)
        assert pipeline.execute() == [b"x"] * len(NAMES)
    assert r.delete(*NAMES, "{t}a", "{t}b") == len(NAMES) + 2 and r.dbsize(target_nodes=ALL) == 0
    assert r.hset("hash", mapping={"f": 1}) and r.hgetall("hash") == {b"f": b"1"} and r.delete("hash") == 1


def main():
    r = RedisCluster(host=HOST, port=PORT, socket_timeout=TIMEOUT, **TLS)
    assert len(r.get_primaries()) == 3 and r.keyslot("foo") == 12182 and r.cluster_keyslot("foo") == 12182
    assert r.cluster_info()["cluster_state"] == "ok"
    works(r)
    assert r.set("{t}n", 7) and r.cluster_countkeysinslot(r.keyslot("t")) == 1
    assert r.get_node_from_key("foo").port == PORT + 2
    node = redis.Redis(HOST, PORT + 2, **TLS)
    fails(lambda: node.mget("a", "b"), "Keys in request don't hash to the same slot")
    fails(lambda: node.get("{bar}"), f"5061 {HOST}:{PORT + 1}")
    fails(lambda: node.execute_command("SELECT", 1), "SELECT is not allowed in cluster mode")
    assert r.flushall()
    before = {name: r.get_node_from_key(name).port for name in NAMES}
    print("ready for another map", flush=True)
    end = time.monotonic() + TIMEOUT
    while r.get("{map}changed") is None:
        assert time.monotonic() < end
    assert r.delete("{map}changed") == 1
    # Redirections update the client's map.
    works(r)
    after = {name: r.get_node_from_key(name).port for name in NAMES}
    moved = [name for name in NAMES if before[name] != after[name]]
    assert len(moved) > 50 and all(after[name] == PORT + 2 for name in moved), len(moved)
    print("all is well")


main()
