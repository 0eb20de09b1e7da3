"""Checks of features that users of pymemcache rely on. Usage: pymemcache_py.py HOST PORT, with TLS if TLS_CA
names an authority. A failed check ends with a traceback."""

import os
import random
import socket
import ssl
import sys
import threading
import time

from pymemcache import Client, HashClient, MemcacheClientError, MemcacheServerError, PooledClient, serde
from pymemcache.exceptions import MemcacheIllegalInputError

SERVER = (sys.argv[1], int(sys.argv[2]))
TIMEOUT = 20
TLS = ssl.create_default_context(cafile=os.environ["TLS_CA"]) if "TLS_CA" in os.environ else None
OPTIONS = {"timeout": TIMEOUT, "tls_context": TLS}


def connect(**more):
    return Client(SERVER, **OPTIONS, connect_timeout=TIMEOUT, default_noreply=False, **more)


def wait_for(done):
    end = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def storing(c):
    assert c.set("k", b"\0\r\n\xff") and c.get("k") == b"\0\r\n\xff" and c.get("absent", "default") == "default"
    assert not c.add("k", "x") and c.add("new", "x") and c.replace("new", "y") and not c.replace("absent", "y")
    assert c.append("new", "z") and c.prepend("new", "x") and c.get("new") == b"xyz" and not c.append("absent", "z")
    assert c.delete("new") and not c.delete("new")
    assert c.set("empty", b"") and c.get("empty") == b"" and c.set("é".encode(), "x") and c.get("é".encode()) == b"x"
    longest = "k" * 250
    assert c.set(longest, "x") and c.get(longest) == b"x"


def many(c):
    pairs = {f"m:{n}": b"%d" % n for n in range(1000)}
    assert c.set_many(pairs) == [] and c.get_many([*pairs, "absent"]) == pairs
    tagged = c.gets_many(list(pairs))
    assert {key: value for key, (value, _) in tagged.items()} == pairs
    assert all(c.cas(key, value + b"!", cas) for key, (value, cas) in list(tagged.items())[:10])
    assert c.delete_many(list(pairs)[:500]) and len(c.get_many(pairs)) == 500


def cas(c):
    c.set("c", "1")
    value, tag = c.gets("c")
    assert value == b"1" and c.gets("absent") == (None, None)
    assert c.cas("c", "2", tag) is True and c.cas("c", "3", tag) is False and c.get("c") == b"2"
    assert c.cas("absent", "x", tag) is None
    # Concurrent read-modify-write cycles with cas lose no increment.
    c.set("counter", "0")

    def count():
        mine = connect()
        for _ in range(50):
            done = False
            while not done:
                value, tag = mine.gets("counter")
                done = mine.cas("counter", b"%d" % (int(value) + 1), tag)

    at_once(4, count)
    assert c.get("counter") == b"200"


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


def counting(c):
    c.set("n", "10")
    assert c.incr("n", 5) == 15 and c.decr("n", 3) == 12 and c.decr("n", 100) == 0 and c.incr("absent", 1) is None
    assert c.set("n", str(2**64 - 1)) and c.incr("n", 1) == 0
    c.set("text", "x")
    try:
        c.incr("text", 1)
        raise AssertionError("a value that is no number was increased")
    except MemcacheClientError as error:
        assert error.args == (b"cannot increment or decrement non-numeric value",), error.args


def expiry(c):
    assert c.set("soon", "x", expire=1) and c.get("soon") == b"x" and c.set("touched", "x", expire=1)
    assert c.touch("touched", 100) and not c.touch("absent", 1)
    assert c.set("past", "x", expire=-1) and c.get("past") is None
    assert c.set("then", "x", expire=int(time.time()) + 100) and c.get("then") == b"x"
    wait_for(lambda: c.get("soon") is None)
    assert c.get("touched") == b"x"


def large_values(c):
    for size in (4_095, 4_096, 100_000, 1_000_000):
        value = random.Random(size).randbytes(size)
        assert c.set("large", value) and c.get("large") == value
    try:
        c.set("large", bytes(1 << 20))
        raise AssertionError("a value above the limit was stored")
    except MemcacheServerError as error:
        assert error.args == (b"object too large for cache",), error.args
    # The refused value is skipped, and the old value is deleted.
    assert c.get("large") is None and c.set("large", "x")


def wrong_input(c):
    c.set("kept", "x")
    for key in ("k" * 251, "with space", "with\nnewline"):
        try:
            c.set(key, "x")
            raise AssertionError(f"{key} was stored")
        except MemcacheIllegalInputError:
            pass
    for request, answer in (
        (b"get " + b"k" * 251, b"CLIENT_ERROR bad command line format"),
        (b"set kept 0 0 x", b"CLIENT_ERROR bad command line format"),
        (b"set kept 0 0 1\r\ntoo long", b"CLIENT_ERROR bad data chunk"),
        (b"incr kept x", b"CLIENT_ERROR invalid numeric delta argument"),
        (b"nosuch", b"ERROR"),
    ):
        assert ask(request) == answer, (request, ask(request))
    assert c.get("kept") == b"x"


def ask(request):
    """Returns the first line of the reply to a request."""
    plain = socket.create_connection(SERVER, timeout=TIMEOUT)
    with TLS.wrap_socket(plain, server_hostname=SERVER[0]) if TLS else plain as connection:
        connection.sendall(request + b"\r\n")
        return connection.makefile("rb").readline().rstrip()


def noreply(c):
    """Requests without reply are processed in order with the others."""
    quiet = Client(SERVER, **OPTIONS, default_noreply=True)
    for n in range(1000):
        quiet.set("quiet", b"%d" % n)
    assert quiet.get("quiet") == b"999"
    quiet.delete("quiet")
    assert quiet.get("quiet") is None


def flags(c):
    objects = connect(serde=serde.pickle_serde)
    value = {"a": [1, "zwei", 3.0], "b": None}
    assert objects.set("o", value) and objects.get("o") == value and objects.set("i", 7) and objects.get("i") == 7
    assert objects.get_many(["o", "i"]) == {"o": value, "i": 7}


def server(c):
    assert c.version() and c.set("s", "x") and c.get("s") and c.get("absent") is None
    stats = c.stats()
    assert stats[b"curr_items"] >= 1 and stats[b"get_hits"] >= 1 and stats[b"get_misses"] >= 1, stats
    assert stats[b"cmd_set"] >= 1 and stats[b"limit_maxbytes"] > 0 and stats[b"pid"] > 0, stats
    assert c.flush_all() and c.get("s") is None
    assert wait_for(lambda: c.stats()[b"curr_items"] == 0) is None


def pools(c):
    pool = PooledClient(SERVER, max_pool_size=20, **OPTIONS, default_noreply=False)
    c.set("hits", "0")
    at_once(20, lambda: [pool.incr("hits", 1) for _ in range(50)])
    assert c.get("hits") == b"1000"
    ring = HashClient([SERVER], **OPTIONS, default_noreply=False)
    assert ring.set_many({"a": b"1", "b": b"2"}) == [] and ring.get_many(["a", "b"]) == {"a": b"1", "b": b"2"}


def main():
    client = connect()
    client.flush_all()
    for part in (storing, many, cas, counting, expiry, large_values, wrong_input, noreply, flags, server, pools):
        part(client)
    client.quit()
    print("all is well")


main()
