"""Checks of features that users of redis-py rely on. Usage: redis_py.py HOST PORT [PASSWORD], with TLS if
TLS_CA names an authority. A failed check ends with a traceback."""

import hashlib
import inspect
import itertools
import os
import random
import sys
import threading
import time

import redis

HOST, PORT = sys.argv[1], int(sys.argv[2])
PASSWORD = sys.argv[3] if len(sys.argv) > 3 else None
TIMEOUT = 20
TLS = {"ssl": True, "ssl_ca_certs": os.environ["TLS_CA"]} if "TLS_CA" in os.environ else {}


def connect(**more):
    return redis.Redis(HOST, PORT, password=PASSWORD, socket_timeout=TIMEOUT, **TLS, **more)


def wait_for(done):
    end = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def fails(what, said, kind=redis.ResponseError):
    """Checks that `what` fails with an error of exactly this kind and message."""
    try:
        what()
    except redis.RedisError as error:
        assert type(error) is kind and str(error) == said, repr(error)
    else:
        raise AssertionError(f"not '{said}'")


def strings(r):
    assert r.ping() and r.echo("hello") == b"hello"
    assert r.set("s", b"\0\r\n\xff") and r.get("s") == b"\0\r\n\xff"
    assert r.set("s", "new", nx=True) is None and r.set("absent", "x", xx=True) is None
    assert r.set("s", "2nd", get=True) == b"\0\r\n\xff"
    assert r.mset({"a": 1, "b": 2}) and r.mget("a", "absent", "b") == [b"1", None, b"2"]
    assert r.msetnx({"c": 3, "a": 4}) is False and r.get("c") is None
    assert r.incr("a") == 2 and r.incrby("a", 40) == 42 and r.decr("a", 2) == 40
    assert r.incrbyfloat("a", 0.5) == 40.5 and r.get("a") == b"40.5"
    assert r.append("b", "345") == 4 and r.strlen("b") == 4
    assert r.getrange("b", 1, -2) == b"34" and r.setrange("b", 6, "8") == 7 and r.get("b") == b"2345\0\x008"
    assert r.getset("b", "x") == b"2345\0\x008" and r.getdel("b") == b"x" and r.exists("b", "a", "a") == 2


def expiry(r):
    r.set("e", 1, ex=100)
    assert 98 <= r.ttl("e") <= 100 and 98_000 <= r.pttl("e") <= 100_000
    assert r.set("e", 2, keepttl=True) and r.ttl("e") > 0
    assert r.expire("e", 200) and r.expire("e", 100, nx=True) == 0 and 198 <= r.ttl("e") <= 200
    at = int(time.time()) + 300
    assert r.expireat("e", at) and r.expiretime("e") == at
    assert r.persist("e") and r.ttl("e") == -1 and r.ttl("absent") == -2
    assert r.getex("e", ex=50) == b"2" and 48 <= r.ttl("e") <= 50
    r.setex("e", 10, "x")
    r.psetex("short", 30, "x")
    r.set("shorter", "x", px=1)
    wait_for(lambda: r.exists("short", "shorter") == 0)
    assert r.get("short") is None and r.get("e") == b"x"
    # Expired keys leave the key count without being accessed.
    for key in range(100):
        r.set(f"soon:{key}", "x", px=20)
    wait_for(lambda: r.dbsize() == len(r.keys("*")) and not r.keys("soon:*"))


def keys(r):
    r.flushdb()
    r.set("one", 1)
    assert r.rename("one", "two") and r.renamenx("two", "three") and r.copy("three", "four")
    assert sorted(r.keys("*")) == [b"four", b"three"] and r.randomkey() in (b"four", b"three")
    assert r.type("four") == b"string" and r.object("encoding", "four") == b"int" and r.touch("four", "absent") == 1
    assert r.memory_usage("four") > 0 and r.dbsize() == 2 and r.unlink("four", "three") == 2
    other = connect(db=3)
    other.set("elsewhere", 1)
    assert r.get("elsewhere") is None and r.copy("x", "y") is False and r.dbsize() == 0
    assert other.dbsize() == 1 and other.flushdb() and other.dbsize() == 0


def hashes(r):
    session = {"user": "anna", "hits": 1, "data": b"\xff\0", "empty": ""}
    assert r.hset("h", mapping=session) == 4 and r.hset("h", "user", "berta") == 0
    assert r.hgetall("h") == {b"user": b"berta", b"hits": b"1", b"data": b"\xff\0", b"empty": b""}
    assert r.hincrby("h", "hits", 41) == 42 and r.hmget("h", "hits", "absent") == [b"42", None]
    assert r.hexists("h", "user") and not r.hexists("h", "absent") and r.hlen("h") == 4 and r.hstrlen("h", "user") == 5
    assert sorted(r.hkeys("h")) == [b"data", b"empty", b"hits", b"user"] and b"berta" in r.hvals("h")
    assert r.hsetnx("h", "user", "x") == 0 and r.hdel("h", "user", "hits", "absent") == 2
    assert r.expire("h", 100) and r.type("h") == b"hash"
    assert r.hdel("h", "data", "empty") == 2 and not r.exists("h")
    # Too many fields for the compact encoding.
    many = {b"field:%d" % n: b"%d" % n * 10 for n in range(5000)}
    assert r.hset("h", mapping=many) == 5000 and r.hgetall("h") == many
    assert dict(r.hscan_iter("h", count=100)) == many
    assert dict(r.hscan_iter("h", match="field:12?")) == {k: v for k, v in many.items() if len(k) == 9 and k[6:8] == b"12"}


def scan(r):
    r.flushdb()
    names = {b"k:%d" % n for n in range(3000)}
    r.mset({name: "x" for name in names})
    r.hset("other", "f", "v")
    assert set(r.scan_iter()) == names | {b"other"}
    assert set(r.scan_iter(match="k:1*", count=500)) == {name for name in names if name.startswith(b"k:1")}
    assert list(r.scan_iter(_type="hash")) == [b"other"]
    # SCAN returns all keys that exist throughout, despite concurrent changes.
    seen = set()
    for n, name in enumerate(r.scan_iter(match="k:*", count=50)):
        seen.add(name)
        r.set(f"new:{n}", "x")
        r.delete(f"new:{n - 1000}")
    assert seen == names


def pipelines(r):
    with r.pipeline(transaction=False) as pipe:
        for n in range(10_000):
            pipe.set(f"p:{n}", n)
        for n in range(10_000):
            pipe.get(f"p:{n}")
        pipe.incr("p:0", 5).lpush("p:0", 1).get("p:0")
        replies = pipe.execute(raise_on_error=False)
    assert replies[:10_000] == [True] * 10_000 and replies[10_000:20_000] == [b"%d" % n for n in range(10_000)]
    assert replies[20_000] == 5 and isinstance(replies[20_001], redis.ResponseError) and replies[20_002] == b"5"


def transactions(r):
    with r.pipeline() as pipe:
        assert pipe.set("t", 1).incr("t").hset("th", "f", "v").mget("t", "absent").execute() == [True, 2, 1, [b"2", None]]
    # A failed command does not roll back the others.
    with r.pipeline() as pipe:
        replies = pipe.set("t", "x").incr("t").get("t").execute(raise_on_error=False)
    assert replies[0] and str(replies[1]).endswith("value is not an integer or out of range") and replies[2] == b"x"
    # An unknown command discards the whole transaction.
    with r.pipeline() as pipe:
        pipe.set("t", "y").execute_command("NOSUCH")
        try:
            pipe.execute()
            raise AssertionError("a transaction with an unknown command was executed")
        except redis.ResponseError as error:
            assert "unknown command" in str(error), error
    assert r.get("t") == b"x"
    # A change of a watched key aborts the transaction.
    with r.pipeline() as pipe:
        pipe.watch("t", "other")
        r.set("other", 1)
        pipe.multi()
        pipe.set("t", "z")
        try:
            pipe.execute()
            raise AssertionError("a transaction was executed despite a change of a watched key")
        except redis.WatchError:
            pass
        pipe.watch("t", "other")
        pipe.unwatch()
        r.set("other", 2)
        assert pipe.multi() is None and pipe.set("t", "z").execute() == [True]
    # Concurrent read-modify-write cycles with WATCH lose no increment.
    r.set("counter", 0)

    def count(pipe):
        value = int(pipe.get("counter"))
        pipe.multi()
        pipe.set("counter", value + 1)

    at_once(4, lambda: [connect().transaction(count, "counter") for _ in range(25)])
    assert r.get("counter") == b"100"


def at_once(n, what):
    failed = []

    def run():
        try:
            what()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def large_values(r):
    for size in (4_095, 4_096, 100_000, 1 << 20, 5_000_000):
        value = random.Random(size).randbytes(size)
        assert r.set("large", value) and r.get("large") == value and r.strlen("large") == size
        assert r.getrange("large", size - 10, size) == value[-10:]
        assert r.hset("large:h", "f", value) in (0, 1) and r.hget("large:h", "f") == value
        assert r.append("large", "tail") == size + 4 and r.get("large") == value + b"tail"
    # Pipelined large values, one overwritten while it may still be in transmission.
    value = random.Random(0).randbytes(1 << 20)
    digest = hashlib.sha256(value).digest()
    with r.pipeline(transaction=False) as pipe:
        for _ in range(5):
            pipe.set("large", value).get("large").set("large", "gone")
        replies = pipe.execute()
    assert all(hashlib.sha256(reply).digest() == digest for reply in replies[1::3])
    assert r.delete("large", "large:h") == 2


def errors(r):
    r.set("s", "x")
    r.hset("h", "f", "v")
    wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value"
    fails(lambda: r.hget("s", "f"), wrong_type)
    fails(lambda: r.incr("h"), wrong_type)
    fails(lambda: r.incr("s"), "value is not an integer or out of range")
    fails(lambda: r.incrbyfloat("s", 1), "value is not a valid float")
    fails(lambda: r.execute_command("SET", "s", "x", "EX", "ten"), "value is not an integer or out of range")
    fails(lambda: r.execute_command("SET", "s", "x", "EX", 0), "invalid expire time in 'set' command")
    fails(lambda: r.execute_command("SET", "s", "x", "WRONG"), "syntax error")
    fails(lambda: r.execute_command("GET"), "wrong number of arguments for 'get' command")
    fails(lambda: r.execute_command("NOSUCH", "a", "b"), "unknown command 'NOSUCH', with args beginning with: 'a' 'b' ")
    fails(lambda: r.rename("absent", "x"), "no such key")
    fails(lambda: r.execute_command("SELECT", 16), "DB index is out of range")
    fails(lambda: r.config_set("maxmemory", "much"),
          "CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value")
    assert r.get("s") == b"x" and r.hget("h", "f") == b"v"


def connections(r):
    if PASSWORD:
        anyone = redis.Redis(HOST, PORT)
        fails(anyone.ping, "Authentication required.", redis.AuthenticationError)
        wrong = redis.Redis(HOST, PORT, password="wrong")
        fails(wrong.ping, "WRONGPASS invalid username-password pair or user is disabled.")
        assert redis.Redis(HOST, PORT, username="default", password=PASSWORD).ping()
    named = connect(client_name="worker-7", single_connection_client=True)
    assert named.client_getname() == "worker-7" and named.client_id() > 0
    mine = [client for client in r.client_list() if client["name"] == "worker-7"]
    assert len(mine) == 1 and int(mine[0]["id"]) == named.client_id(), mine
    assert r.client_kill_filter(_id=mine[0]["id"]) == 1
    wait_for(lambda: not [client for client in r.client_list() if client["name"] == "worker-7"])
    assert r.info()["redis_version"] and r.info("clients")["connected_clients"] >= 1
    assert r.config_get("maxmemory-policy") and r.time()[0] > 1_700_000_000
    assert r.command_count() > 50 and "get" in r.command()
    connect(decode_responses=True).set("text", "größe")
    assert connect(decode_responses=True).get("text") == "größe"
    # A connection pool with many users.
    r.delete("hits")
    at_once(20, lambda: [r.incr("hits") for _ in range(50)])
    assert r.get("hits") == b"1000"


def pauses(r):
    r.set("p", 1)
    assert r.client_pause(60_000, all=False) and r.get("p") == b"1"
    writer = threading.Thread(target=lambda: connect().incr("p"))
    writer.start()
    wait_for(lambda: r.info("clients")["blocked_clients"] == 1)
    assert r.get("p") == b"1" and r.client_unpause()
    writer.join()
    assert r.get("p") == b"2"
    begin = time.monotonic()
    assert r.client_pause(200) and r.get("p") == b"2"
    # Redis rounds the times of begin and end to milliseconds.
    assert time.monotonic() - begin > 0.19


def main():
    kinds = [{}, {"decode_responses": False, "health_check_interval": 1}]
    if "protocol" in inspect.signature(redis.Redis.__init__).parameters:
        kinds.append({"protocol": 3})
    parts = (strings, expiry, keys, hashes, transactions, errors, connections)
    # Slow checks that do not depend on the connection options.
    once = (scan, pipelines, large_values, pauses)
    for kind, part in itertools.chain(itertools.product(kinds, parts), itertools.product(kinds[-1:], once)):
        client = connect(**kind)
        client.flushall()
        part(client)
    print("all is well")


main()
