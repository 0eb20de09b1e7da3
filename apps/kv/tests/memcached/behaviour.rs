//! What is defined, and what memcached leaves open or has no words for.

use super::client::{Client, NOW};
use linerate_kv::store::{Config, Evictable, EvictionPolicy};

#[test]
fn values_are_stored_and_found_with_their_flags() {
    for mut client in Client::each() {
        client.says("set a 7 0 2|hi", "STORED");
        client.says("get a b a", "VALUE a 7 2|hi|VALUE a 7 2|hi|END");
        client.says("add a 0 0 1|x", "NOT_STORED");
        client.says("replace b 0 0 1|x", "NOT_STORED");
        client.says("append a 9 9 1|!", "STORED");
        client.says("prepend a 9 9 1|>", "STORED");
        client.says("get a", "VALUE a 7 4|>hi!|END");
        client.says("append b 0 0 1|x", "NOT_STORED");
        client.says("delete a", "DELETED");
        client.says("delete a", "NOT_FOUND");
        client.says("set a 0 0 1 noreply|x", "");
        client.says("get a", "VALUE a 0 1|x|END");
    }
}

#[test]
fn a_value_is_replaced_only_if_it_is_the_one_that_was_seen() {
    for mut client in Client::each() {
        client.says("cas a 0 0 1 1|x", "NOT_FOUND");
        client.says("ms a 1 c|x", "HD c1");
        client.says("cas a 0 0 1 2|y", "EXISTS");
        client.says("cas a 0 0 1 1|y", "STORED");
        client.says("gets a", "VALUE a 0 1 2|y|END");
        client.says("ms a 1 C1 c|z", "EX c0");
        client.says("ms a 1 C2 c k|z", "HD c3 ka");
        client.says("ms a 1 C2 I|s", "HD");
        client.says("mg a v c", "VA 1 c4 X W|s");
        client.says("mg a v c", "VA 1 c4 Z X|s");
    }
}

#[test]
fn numbers_go_round_at_64_bits_and_stay_as_long_as_they_were() {
    for mut client in Client::each() {
        client.says("set a 0 0 2|10", "STORED");
        client.says("decr a 1", "9");
        client.says("get a", "VALUE a 0 2|9 |END");
        client.says("decr a 10", "0");
        client.says("incr a 18446744073709551615", "18446744073709551615");
        client.says("incr a 2", "1");
        client.says("get a", "VALUE a 0 20|1                   |END");
        client.says("incr b 1", "NOT_FOUND");
        client.says("ma b N0 J18446744073709551615 v", "VA 20|18446744073709551615");
        client.says("ma b D3 v", "VA 1|2");
        client.says("set c 0 0 1|x", "STORED");
        client.says("incr c 1", "CLIENT_ERROR cannot increment or decrement non-numeric value");
        let wide = format!("5{}", " ".repeat(99));
        client.says(&format!("set d 0 0 100|{wide}"), "STORED");
        client.says("incr d 7", "12");
        client.says("get d", &format!("VALUE d 0 100|12{}|END", " ".repeat(98)));
    }
}

#[test]
fn what_has_expired_is_gone_to_the_millisecond() {
    for mut client in Client::each() {
        client.says("set a 0 10 1|x", "STORED");
        client.says("set b 0 0 1|x", "STORED");
        client.says("gat 10 b", "VALUE b 0 1|x|END");
        client.says("set c 0 1700000010 1|x", "STORED");
        client.says("mg d N10", "HD W");
        client.says("ma e N10", "HD");
        client.now = NOW + 9_999;
        client.says("mg a t", "HD t1");
        client.says("touch a 0", "TOUCHED");
        client.says("get b c d", "VALUE b 0 1|x|VALUE c 0 1|x|VALUE d 0 0||END");
        client.now = NOW + 10_000;
        client.says("get a b c d e", "VALUE a 0 1|x|END");
        client.says("mg a T-1 t v", "VA 1 t0|x");
        client.says("mg a", "EN");
        client.says("set a 0 -1 1|x", "STORED");
        client.says("get a", "END");
    }
}

#[test]
fn all_is_flushed_at_once_or_when_it_was_said() {
    for mut client in Client::each() {
        let set = |client: &mut Client| client.says("set a 0 0 1|x", "STORED");
        set(&mut client);
        client.says("flush_all", "OK");
        client.says("get a", "END");
        set(&mut client);
        client.says("flush_all 10", "OK");
        client.now = NOW + 9_999;
        client.says("get a", "VALUE a 0 1|x|END");
        client.now = NOW + 10_000;
        client.says("get a", "END");
        set(&mut client);
        client.says("get a", "VALUE a 0 1|x|END");
        // The last word counts.
        client.says("flush_all 10", "OK");
        client.says("flush_all", "OK");
        set(&mut client);
        client.now = NOW + 30_000;
        client.says("get a", "VALUE a 0 1|x|END");
    }
}

#[test]
fn a_client_that_wins_replaces_and_others_wait() {
    for mut client in Client::each() {
        client.says("mg a N30 t v", "VA 0 t30 W|");
        client.says("mg a N30 t v", "VA 0 t30 Z|");
        client.says("ms a 2 T30|hi", "HD");
        client.says("mg a R30 v", "VA 2|hi");
        client.now += 1000;
        client.says("mg a R30 t v", "VA 2 t29 W|hi");
        client.says("mg a R30 t v", "VA 2 t29 Z|hi");
        client.says("ms a 2 T30|ho", "HD");
        client.says("md a I T10", "HD");
        client.says("get a", "VALUE a 0 2|ho|END");
        client.says("mg a t v", "VA 2 t10 X W|ho");
        client.says("mg a t v", "VA 2 t10 Z X|ho");
    }
}

#[test]
fn keys_of_any_bytes_are_sent_in_base64() {
    for mut client in Client::each() {
        client.says("ms AAECIA== 2 b k c|hi", "HD kAAECIA== b c1");
        client.says("mg AAECIA== b k v", "VA 2 kAAECIA== b|hi");
        client.says("mg AAECIA== k v", "EN kAAECIA==");
        client.says("me AAECIA== b", "ME AAECIA== exp=-1 la=0 cas=1 fetch=yes cls=1 size=65");
        client.says("md AAECIA== b k", "HD kAAECIA== b");
    }
}

#[test]
fn the_longest_reply_fits() {
    let (key, opaque) = ("k".repeat(250), "o".repeat(31));
    for mut client in Client::each() {
        client.says(&format!("set {key} 4294967295 2147483647 1|x"), "STORED");
        let reply = format!("VALUE {key} 4294967295 1 1|x|END");
        client.says(&format!("gets {key}"), &reply);
        let left = i32::MAX as u64 - NOW / 1000;
        let flags = format!("mg {key} v s t c f k h l O{opaque} q");
        client.says(&flags, &format!("VA 1 s1 t{left} c1 f4294967295 k{key} h1 l0 O{opaque}|x"));
        client.says(&format!("md {key} I"), "HD");
        client.says(&flags, &format!("VA 1 s1 t{left} c2 f4294967295 k{key} h1 l0 O{opaque} X W|x"));
        let name = "AAAA".repeat(62);
        client.says(&format!("ms {name} 0 b k O{opaque}|"), &format!("HD k{name} b O{opaque}"));
    }
}

#[test]
fn values_in_the_arena_are_like_others() {
    for mut client in Client::each() {
        let (x, y) = ("x".repeat(10_000), "y".repeat(5_000));
        client.says(&format!("set a 3 100 10000|{x}"), "STORED");
        client.says("get a", &format!("VALUE a 3 10000|{x}|END"));
        client.says(&format!("append a 0 0 5000|{y}"), "STORED");
        client.says("prepend a 0 0 1|z", "STORED");
        client.says("mg a s t f v", &format!("VA 15001 s15001 t100 f3|z{x}{y}"));
        client.says("incr a 1", "CLIENT_ERROR cannot increment or decrement non-numeric value");
        client.says(&format!("prepend a 0 0 5000|{y}"), "STORED");
        client.says("mg a s t", "HD s20001 t100");
        client.says("set a 0 0 1|5", "STORED");
        client.says("incr a 1", "6");
    }
}

#[test]
fn items_are_as_large_as_allowed_and_no_larger() {
    let too_large = "SERVER_ERROR object too large for cache";
    for mut client in Client::each() {
        client.limits.item = 1024;
        let (fits, exceeds) = ("x".repeat(1024 - 60), "x".repeat(1024 - 59));
        client.says(&format!("set a 0 0 {}|{fits}", fits.len()), "STORED");
        client.says(&format!("add a 0 0 {}|{exceeds}", exceeds.len()), too_large);
        client.says("append a 0 0 1|x", "NOT_STORED");
        client.says("ms a 1 MP|x", "NS");
        client.says("mg a s", "HD s964");
        client.says(&format!("set a 1 0 {}|{fits}", fits.len()), too_large);
        client.says("get a", "END");
        client.says("set a 0 0 1|x", "STORED");
        client.says(&format!("set a 0 0 {} noreply|{exceeds}", exceeds.len()), "");
        client.says("get a", "END");
        client.says("set a 0 0 1|x", "STORED");
        client.says(&format!("ms a {} ME q k|{exceeds}", exceeds.len()), too_large);
        client.says("get a", "END");
    }
}

#[test]
fn without_memory_what_was_to_be_replaced_goes() {
    let config = Config { evict: EvictionPolicy::None, ..Config::new(1 << 20) };
    let mut client = Client::with(1, config);
    client.limits.item = 4 << 20;
    let value = "x".repeat(100_000);
    let full = "SERVER_ERROR out of memory storing object";
    let count = (0..).find(|n| client.ask(format!("set {n} 0 0 100000\r\n{value}\r\n").as_bytes()) != b"STORED\r\n");
    assert!(count.is_some_and(|count| count > 3), "{count:?}");
    let huge = "x".repeat(2 << 20);
    client.says(&format!("set 1 0 0 {}|{huge}", huge.len()), full);
    client.says("get 1", "END");
    client.says(&format!("ms 2 {} q|{huge}", huge.len()), full);
    client.says("mg 2 v", "EN");
    client.says(&format!("add new 0 0 {}|{huge}", huge.len()), full);
    // Where it is known before they have come, it is said then, and they are not kept.
    assert_eq!(client.ask(format!("set 0 0 0 {}\r\nx", huge.len()).as_bytes()), format!("{full}\r\n").as_bytes());
    client.says(&huge[1..], "");
    client.says("get 0", "END");
    client.says("mn", "MN");
}

#[test]
fn with_eviction_what_is_new_is_stored() {
    let mut client = Client::with(2, Config { evict: EvictionPolicy::Lru(Evictable::AllKeys), ..Config::new(2 << 20) });
    let value = "x".repeat(1000);
    for n in 0..10_000 {
        client.says(&format!("set {n} 0 0 1000|{value}"), "STORED");
    }
    client.says("get 9999", &format!("VALUE 9999 0 1000|{value}|END"));
}

#[test]
fn what_happened_is_counted() {
    for mut client in Client::each() {
        client.says("stats items", "END");
        client.says("set a 0 0 1|1", "STORED");
        client.says("set b 0 0 1|1", "STORED");
        client.says("get a c", "VALUE a 0 1|1|END");
        client.says("incr a 1", "2");
        client.says("decr c 1", "NOT_FOUND");
        client.says("cas a 0 0 1 9|1", "EXISTS");
        client.says("touch c 1", "NOT_FOUND");
        client.says("md b q", "");
        let stats = String::from_utf8(client.ask(b"stats\r\n")).unwrap();
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
        client.says("stats items", "STAT items:1:number 1|STAT items:1:evicted 0|END");
        client.says("stats sizes", "STAT sizes_status disabled|END");
        client.says("stats nothing", "ERROR");
        let settings = String::from_utf8(client.ask(b"stats settings\r\n")).unwrap();
        assert!(settings.contains("STAT item_size_max 1048576\r\n") && settings.contains("STAT evictions off\r\n"));
        client.says("stats reset", "RESET");
        let stats = String::from_utf8(client.ask(b"stats\r\n")).unwrap();
        assert!(stats.contains("STAT cmd_get 0\r\n") && stats.contains("STAT curr_items 1\r\n"));
    }
}

#[test]
fn whoever_quits_or_sends_no_line_is_disconnected() {
    for mut client in Client::each() {
        client.says("version|verbosity 1|mn", "VERSION 1.6.18|OK|MN");
        client.says("quit|mn", "");
        assert!(client.is_closed);
    }
    let mut client = Client::new(1, 1 << 20);
    assert_eq!(client.ask(&[b'x'; 2049]), b"");
    assert!(client.is_closed);
}
