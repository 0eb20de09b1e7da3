use super::*;

fn connection(slot: usize, local: &str, remote: &str, state: &str) -> Connection {
    let json = serde_json::json!({
        "worker": 0, "slot": slot, "generation": 0, "state": state, "local": local, "remote": remote,
        "unread_bytes": slot, "unsent_bytes": 0
    });
    serde_json::from_value(json).unwrap()
}

#[test]
fn address_filter_is_an_address_a_prefix_or_a_port() {
    for (text, matching, other) in [
        ("10.0.0.2", "10.0.0.2:7", "10.0.0.3:7"),
        ("10.0.0.2:7", "10.0.0.2:7", "10.0.0.2:8"),
        (":7", "[::1]:7", "[::1]:8"),
        ("10.0.0.0/8", "10.255.1.1:7", "11.0.0.1:7"),
        ("10.0.0.5/31", "10.0.0.4:7", "10.0.0.6:7"),
        ("0.0.0.0/0", "255.255.255.255:1", "[::1]:1"),
        ("::/0", "[fe80::1]:1", "10.0.0.1:1"),
        ("fe80::/10", "[febf::1]:1", "[fec0::1]:1"),
        ("[fe80::1]", "[fe80::1]:9", "[fe80::2]:9"),
        ("[::1]:7", "[::1]:7", "[::1]:9"),
        ("10.0.0.2", "[::ffff:10.0.0.2]:7", "[::ffff:10.0.0.3]:7"),
    ] {
        let filter: AddressFilter = text.parse().unwrap();
        assert!(filter.matches(matching.parse().unwrap()), "{text} {matching}");
        assert!(!filter.matches(other.parse().unwrap()), "{text} {other}");
    }
    for text in ["", ":", ":x", ":70000", "10.0.0", "10.0.0.0/33", "10.0.0.0/", "::/129", "localhost", "10.0.0.0/-1"] {
        assert!(text.parse::<AddressFilter>().is_err(), "{text}");
    }
}

#[test]
fn connection_must_match_all_filters() {
    let all = [
        connection(0, "10.0.0.2:7", "10.0.0.1:1000", "established"),
        connection(1, "10.0.0.2:8", "10.0.0.1:1001", "established"),
        connection(2, "10.0.0.2:7", "10.9.0.1:1002", "close-wait"),
        Connection { local: None, ..connection(3, "10.0.0.2:7", "10.0.0.1:1003", "syn-sent") },
    ];
    let matching =
        |filter: Filter| all.iter().filter(|conn| filter.matches(conn)).map(|conn| conn.slot).collect::<Vec<_>>();
    let address = |text: &str| Some(text.parse().unwrap());
    let state = |states: &[&str]| states.iter().map(|state| parse_state(state).unwrap()).collect();
    assert_eq!(matching(Filter::default()), [0, 1, 2, 3]);
    assert_eq!(matching(Filter { local: address(":7"), ..Filter::default() }), [0, 2]);
    assert_eq!(matching(Filter { local: address(":7"), remote: address("10.0.0.0/24"), ..Filter::default() }), [0]);
    assert_eq!(matching(Filter { state: state(&["ESTABLISHED"]), ..Filter::default() }), [0, 1]);
    assert_eq!(matching(Filter { state: state(&["close-wait", "syn-sent"]), ..Filter::default() }), [2, 3]);
    assert!(parse_state("open").unwrap_err().contains("fin-wait-1"));
}

#[test]
fn numbers_sort_descending_and_addresses_ascending() {
    let mut all = [
        Connection { rtt_us: Some(9.0), ..connection(0, "10.0.0.2:7", "10.0.0.1:900", "established") },
        Connection { rtt_us: None, ..connection(1, "10.0.0.2:7", "10.0.0.1:10000", "closed") },
        Connection { rtt_us: Some(10.5), ..connection(2, "10.0.0.2:7", "9.0.0.1:1", "time-wait") },
    ];
    for (by, order) in [
        (SortArg::Worker, [0, 1, 2]),
        (SortArg::Local, [0, 1, 2]),
        (SortArg::Remote, [2, 0, 1]),
        (SortArg::State, [1, 0, 2]),
        (SortArg::Unread, [2, 1, 0]),
        (SortArg::Rtt, [2, 0, 1]),
        (SortArg::Retransmitted, [0, 1, 2]),
    ] {
        all.sort_by(|a, b| by.order(a, b));
        assert_eq!(all.iter().map(|it| it.slot).collect::<Vec<_>>(), order, "{by:?}");
    }
}

#[test]
fn text_shows_available_details_only() {
    let bare = connection(0, "10.0.0.2:7", "10.0.0.1:900", "established");
    let full = Connection {
        mss_bytes: Some(1448),
        rtt_us: Some(12.5),
        rtt_variation_us: Some(2.0),
        min_rtt_us: Some(1500.0),
        retransmission_time_out_us: Some(1_200_000.0),
        congestion_window_bytes: Some(14_480),
        retransmitted_segments: Some(3),
        reorders: Some(true),
        is_recovering: Some(false),
        time_outs: Some(0),
        tls_version: Some("TLSv1.3".to_owned()),
        tls_suite: Some("TLS_AES_128_GCM_SHA256".to_owned()),
        tls_is_resumed: Some(true),
        ..connection(1, "10.0.0.2:7", "[fe80::1]:900", "fin-wait-1")
    };
    let text = text(&[bare, full]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("state") && lines[1].starts_with("established        0          0"), "{text}");
    assert!(lines[2].ends_with("10.0.0.2:7       [fe80::1]:900"), "{text}");
    assert_eq!(
        lines[3],
        "    mss:1448  rtt:12.5us/2.00us  minrtt:1.50ms  rto:1.20s  cwnd:14480  retrans:3  tls:TLSv1.3  \
         suite:TLS_AES_128_GCM_SHA256  resumed  reordering"
    );
    assert_eq!(super::text(&[]).lines().count(), 1);
}

#[test]
fn json_has_all_fields_and_null_for_unavailable_ones() {
    let connections = vec![connection(0, "10.0.0.2:7", "10.0.0.1:900", "established")];
    let report = Report { pid: 1, program: "0", command: "echo serve", silent_workers: vec![3], connections };
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["silent_workers"][0], &json["connections"][0]["slot"]), (&3.into(), &0.into()));
    let connection = json["connections"][0].as_object().unwrap();
    for name in ["rtt_us", "retransmitted_segments", "congestion_window_bytes", "reorders"] {
        assert!(connection[name].is_null(), "{name}");
    }
}
