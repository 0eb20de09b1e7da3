//! Defined behaviour, including cases that memcached leaves open.

use super::client::{Client, NOW};
use linerate_kv::store::{Config, Evictable, EvictionPolicy};

#[test]
fn numbers_wrap_at_64_bits_and_keep_their_length() {
    for mut client in Client::each() {
        client.expect("set a 0 0 2|10", "STORED");
        client.expect("decr a 1", "9");
        client.expect("get a", "VALUE a 0 2|9 |END");
        client.expect("decr a 10", "0");
        client.expect("incr a 18446744073709551615", "18446744073709551615");
        client.expect("incr a 2", "1");
        client.expect("get a", "VALUE a 0 20|1                   |END");
        client.expect("incr b 1", "NOT_FOUND");
        client.expect("ma b N0 J18446744073709551615 v", "VA 20|18446744073709551615");
        client.expect("ma b D3 v", "VA 1|2");
        client.expect("set c 0 0 1|x", "STORED");
        client.expect("incr c 1", "CLIENT_ERROR cannot increment or decrement non-numeric value");
        let wide = format!("5{}", " ".repeat(99));
        client.expect(&format!("set d 0 0 100|{wide}"), "STORED");
        client.expect("incr d 7", "12");
        client.expect("get d", &format!("VALUE d 0 100|12{}|END", " ".repeat(98)));
    }
}

#[test]
fn item_expires_to_the_millisecond() {
    for mut client in Client::each() {
        client.expect("set a 0 10 1|x", "STORED");
        client.expect("set b 0 0 1|x", "STORED");
        client.expect("gat 10 b", "VALUE b 0 1|x|END");
        client.expect("set c 0 1700000010 1|x", "STORED");
        client.expect("mg d N10", "HD W");
        client.expect("ma e N10", "HD");
        client.now = NOW + 9_999;
        client.expect("mg a t", "HD t1");
        client.expect("touch a 0", "TOUCHED");
        client.expect("get b c d", "VALUE b 0 1|x|VALUE c 0 1|x|VALUE d 0 0||END");
        client.now = NOW + 10_000;
        client.expect("get a b c d e", "VALUE a 0 1|x|END");
        client.expect("mg a T-1 t v", "VA 1 t0|x");
        client.expect("mg a", "EN");
        client.expect("set a 0 -1 1|x", "STORED");
        client.expect("get a", "END");
    }
}

#[test]
fn flush_all_takes_effect_at_once_or_later() {
    for mut client in Client::each() {
        let set = |client: &mut Client| client.expect("set a 0 0 1|x", "STORED");
        set(&mut client);
        client.expect("flush_all", "OK");
        client.expect("get a", "END");
        set(&mut client);
        client.expect("flush_all 10", "OK");
        client.now = NOW + 9_999;
        client.expect("get a", "VALUE a 0 1|x|END");
        client.now = NOW + 10_000;
        client.expect("get a", "END");
        set(&mut client);
        client.expect("get a", "VALUE a 0 1|x|END");
        // The last command counts.
        client.expect("flush_all 10", "OK");
        client.expect("flush_all", "OK");
        set(&mut client);
        client.now = NOW + 30_000;
        client.expect("get a", "VALUE a 0 1|x|END");
    }
}

#[test]
fn one_client_wins_recache_and_others_wait() {
    for mut client in Client::each() {
        client.expect("mg a N30 t v", "VA 0 t30 W|");
        client.expect("mg a N30 t v", "VA 0 t30 Z|");
        client.expect("ms a 2 T30|hi", "HD");
        client.expect("mg a R30 v", "VA 2|hi");
        client.now += 1000;
        client.expect("mg a R30 t v", "VA 2 t29 W|hi");
        client.expect("mg a R30 t v", "VA 2 t29 Z|hi");
        client.expect("ms a 2 T30|ho", "HD");
        client.expect("md a I T10", "HD");
        client.expect("get a", "VALUE a 0 2|ho|END");
        client.expect("mg a t v", "VA 2 t10 X W|ho");
        client.expect("mg a t v", "VA 2 t10 Z X|ho");
    }
}

#[test]
fn binary_keys_are_sent_in_base64() {
    for mut client in Client::each() {
        client.expect("ms AAECIA== 2 b k c|hi", "HD kAAECIA== b c1");
        client.expect("mg AAECIA== b k v", "VA 2 kAAECIA== b|hi");
        client.expect("mg AAECIA== k v", "EN kAAECIA==");
        client.expect("me AAECIA== b", "ME AAECIA== exp=-1 la=0 cas=1 fetch=yes cls=1 size=65");
        client.expect("md AAECIA== b k", "HD kAAECIA== b");
    }
}

#[test]
fn longest_reply_fits() {
    let (key, opaque) = ("k".repeat(250), "o".repeat(31));
    for mut client in Client::each() {
        client.expect(&format!("set {key} 4294967295 2147483647 1|x"), "STORED");
        let reply = format!("VALUE {key} 4294967295 1 1|x|END");
        client.expect(&format!("gets {key}"), &reply);
        let left = i32::MAX as u64 - NOW / 1000;
        let flags = format!("mg {key} v s t c f k h l O{opaque} q");
        client.expect(&flags, &format!("VA 1 s1 t{left} c1 f4294967295 k{key} h1 l0 O{opaque}|x"));
        client.expect(&format!("md {key} I"), "HD");
        client.expect(&flags, &format!("VA 1 s1 t{left} c2 f4294967295 k{key} h1 l0 O{opaque} X W|x"));
        let name = "AAAA".repeat(62);
        client.expect(&format!("ms {name} 0 b k O{opaque}|"), &format!("HD k{name} b O{opaque}"));
    }
}

#[test]
fn long_values_behave_like_short_ones() {
    for mut client in Client::each() {
        let (x, y) = ("x".repeat(10_000), "y".repeat(5_000));
        client.expect(&format!("set a 3 100 10000|{x}"), "STORED");
        client.expect("get a", &format!("VALUE a 3 10000|{x}|END"));
        client.expect(&format!("append a 0 0 5000|{y}"), "STORED");
        client.expect("prepend a 0 0 1|z", "STORED");
        client.expect("mg a s t f v", &format!("VA 15001 s15001 t100 f3|z{x}{y}"));
        client.expect("incr a 1", "CLIENT_ERROR cannot increment or decrement non-numeric value");
        client.expect(&format!("prepend a 0 0 5000|{y}"), "STORED");
        client.expect("mg a s t", "HD s20001 t100");
        client.expect("set a 0 0 1|5", "STORED");
        client.expect("incr a 1", "6");
    }
}

#[test]
fn item_size_is_limited() {
    let too_large = "SERVER_ERROR object too large for cache";
    for mut client in Client::each() {
        client.limits.item = 1024;
        let (fits, exceeds) = ("x".repeat(1024 - 60), "x".repeat(1024 - 59));
        client.expect(&format!("set a 0 0 {}|{fits}", fits.len()), "STORED");
        client.expect(&format!("add a 0 0 {}|{exceeds}", exceeds.len()), too_large);
        client.expect("append a 0 0 1|x", "NOT_STORED");
        client.expect("ms a 1 MP|x", "NS");
        client.expect("mg a s", "HD s964");
        client.expect(&format!("set a 1 0 {}|{fits}", fits.len()), too_large);
        client.expect("get a", "END");
        client.expect("set a 0 0 1|x", "STORED");
        client.expect(&format!("set a 0 0 {} noreply|{exceeds}", exceeds.len()), "");
        client.expect("get a", "END");
        client.expect("set a 0 0 1|x", "STORED");
        client.expect(&format!("ms a {} ME q k|{exceeds}", exceeds.len()), too_large);
        client.expect("get a", "END");
    }
}

#[test]
fn failed_store_removes_old_value() {
    let config = Config { evict: EvictionPolicy::None, ..Config::new(1 << 20) };
    let mut client = Client::with(1, config);
    client.limits.item = 4 << 20;
    let value = "x".repeat(100_000);
    let full = "SERVER_ERROR out of memory storing object";
    let count = (0..).find(|n| client.call(format!("set {n} 0 0 100000\r\n{value}\r\n").as_bytes()) != b"STORED\r\n");
    assert!(count.is_some_and(|count| count > 3), "{count:?}");
    let huge = "x".repeat(2 << 20);
    client.expect(&format!("set 1 0 0 {}|{huge}", huge.len()), full);
    client.expect("get 1", "END");
    client.expect(&format!("ms 2 {} q|{huge}", huge.len()), full);
    client.expect("mg 2 v", "EN");
    client.expect(&format!("add new 0 0 {}|{huge}", huge.len()), full);
    // The error is sent before the data block arrives, and the block is skipped.
    assert_eq!(client.call(format!("set 0 0 0 {}\r\nx", huge.len()).as_bytes()), format!("{full}\r\n").as_bytes());
    client.expect(&huge[1..], "");
    client.expect("get 0", "END");
    client.expect("mn", "MN");
}

#[test]
fn new_item_is_stored_by_evicting_others() {
    let mut client = Client::with(2, Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(2 << 20) });
    let value = "x".repeat(1000);
    for n in 0..10_000 {
        client.expect(&format!("set {n} 0 0 1000|{value}"), "STORED");
    }
    client.expect("get 9999", &format!("VALUE 9999 0 1000|{value}|END"));
}

#[test]
fn stats_count_operations() {
    for mut client in Client::each() {
        client.expect("stats items", "END");
        client.expect("set a 0 0 1|1", "STORED");
        client.expect("set b 0 0 1|1", "STORED");
        client.expect("get a c", "VALUE a 0 1|1|END");
        client.expect("incr a 1", "2");
        client.expect("decr c 1", "NOT_FOUND");
        client.expect("cas a 0 0 1 9|1", "EXISTS");
        client.expect("touch c 1", "NOT_FOUND");
        client.expect("md b q", "");
        let stats = String::from_utf8(client.call(b"stats\r\n")).unwrap();
        let stat = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {stats}")).to_string()
        };
        assert!(stats.ends_with("END\r\n"));
        for (name, value) in [
            ("version", "1.6.18"),
            ("cmd_get", "2"),
            ("cmd_set", "3"),
            ("cmd_meta", "1"),
            ("get_hits", "1"),
            ("get_misses", "1"),
            ("incr_hits", "1"),
            ("decr_misses", "1"),
            ("cas_badval", "1"),
            ("touch_misses", "1"),
            ("delete_hits", "1"),
            ("curr_items", "1"),
            ("total_items", "2"),
            ("time", "1700000000"),
        ] {
            assert_eq!(stat(name), value, "{name}");
        }
        client.expect("stats items", "STAT items:1:number 1|STAT items:1:evicted 0|END");
        client.expect("stats sizes", "STAT sizes_status disabled|END");
        client.expect("stats nothing", "ERROR");
        let settings = String::from_utf8(client.call(b"stats settings\r\n")).unwrap();
        assert!(settings.contains("STAT item_size_max 1048576\r\n") && settings.contains("STAT evictions off\r\n"));
        client.expect("stats reset", "RESET");
        let stats = String::from_utf8(client.call(b"stats\r\n")).unwrap();
        assert!(stats.contains("STAT cmd_get 0\r\n") && stats.contains("STAT curr_items 1\r\n"));
    }
}

#[test]
fn quit_and_endless_line_close_connection() {
    for mut client in Client::each() {
        client.expect("version|verbosity 1|mn", "VERSION 1.6.18|OK|MN");
        client.expect("quit|mn", "");
        assert!(client.is_closed);
    }
    let mut client = Client::new(1, 1 << 20);
    assert_eq!(client.call(&[b'x'; 2049]), b"");
    assert!(client.is_closed);
}
