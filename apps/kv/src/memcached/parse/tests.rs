use super::*;
use crate::store::{Config, Store};

const LIMITS: Limits = Limits { item: 1 << 20, long: 4096 };

/// Returns the data of all requests in `bytes`, and whether the parser fails at the rest.
fn parsed(bytes: &[u8]) -> (Vec<String>, bool) {
    let mut parser = Parser::default();
    let mut all = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let used = match parser.parse(rest, &LIMITS) {
            Ok(Parsed::Request { data, len, .. }) => {
                all.push(match data {
                    Data::Short(bytes) => bytes.escape_ascii().to_string(),
                    data => format!("{data:?}"),
                });
                len
            }
            Ok(Parsed::Skip(len)) => len,
            Ok(_) => break,
            Err(_) => return (all, true),
        };
        rest = &rest[used..];
    }
    (all, false)
}

#[test]
fn data_block_has_length_of_its_line() {
    assert_eq!(parsed(b"set a 0 0 4\r\nab\r\n\r\nget a\r\n").0, ["ab\\r\\n", ""]);
    assert_eq!(parsed(b"set a 0 0 0\n\r\nms a 1\r\nx\r\n").0, ["", "x"]);
    assert_eq!(parsed(b"set a 0 0 1\r\nxyzget a\r\n").0, ["Unended", ""]);
    assert_eq!(parsed(b"set a 0 0 1\r\nx\n\n").0, ["Unended"]);
}

#[test]
fn too_large_data_is_skipped_and_data_without_length_is_not() {
    let data = vec![b'x'; 1 << 20];
    let bytes = [b"set a 0 0 1048576\r\n", &data[..], b"\r\nget a\r\n"].concat();
    assert_eq!(parsed(&bytes).0, ["TooLarge", ""]);
    assert_eq!(parsed(b"set a 0 0 x\r\nget a\r\n").0, ["", ""]);
    assert_eq!(parsed(b"ms a 5 x\r\nget a\r\nget b\r\n").0, ["TooLarge", ""]);
}

#[test]
fn line_length_is_limited_unless_it_lists_keys() {
    let long = |start: &str, len: usize| [start.as_bytes(), &b" ".repeat(len - start.len()), b"\r\n"].concat();
    for (start, len, is_long) in [
        ("mn", 2047, false),
        ("mn", 2048, true),
        ("mn", 1 << 20, true),
        ("get a", 10_000, false),
        ("gats 0 a", 10_000, false),
        ("  get a", 10_000, false),
        ("getting a", 10_000, true),
        ("gets a", (1 << 20) + 1, true),
    ] {
        assert_eq!(parsed(&long(start, len)).1, is_long, "{start} of {len}");
        // The result is the same without the line end.
        let bytes = long(start, len);
        assert_eq!(parsed(&bytes[..len + 1]).1, is_long, "{start} of {len} and no end");
    }
    let spaces = " ".repeat(101) + "get a" + &" ".repeat(2000);
    assert!(parsed(spaces.as_bytes()).1);
}

#[test]
fn partial_result_states_needed_bytes() {
    let mut parser = Parser::default();
    let partial = |parser: &mut Parser, bytes: &[u8]| match parser.parse(bytes, &LIMITS) {
        Ok(Parsed::Partial(needed)) => needed,
        other => panic!("{other:?}"),
    };
    assert!(!parser.is_within());
    assert_eq!(partial(&mut parser, b"set a 0 0"), 10);
    assert!(parser.is_within());
    assert_eq!(partial(&mut parser, b"set a 0 0 100\r\nx"), 15 + 100 + 2);
    assert_eq!(partial(&mut parser, b"set a 0 0 100\r\nxyz"), 15 + 100 + 2);
}

#[test]
fn long_data_is_taken_out_or_refused() {
    let mut store = Store::new(&Config::new(4 << 20), 0);
    let line = b"set a 0 0 5000\r\n";
    let long_data = |parser: &mut Parser| match parser.parse(line, &LIMITS) {
        Ok(Parsed::Long { at, len, .. }) => (at, len),
        other => panic!("{other:?}"),
    };
    let data = |parser: &mut Parser| match parser.parse(line, &LIMITS) {
        Ok(Parsed::Request { data, len, .. }) => (data, len),
        other => panic!("{other:?}"),
    };
    for (end, is_whole) in [(*b"\r\n", true), (*b"\n\n", false)] {
        let mut parser = Parser::default();
        assert_eq!(long_data(&mut parser), (line.len(), 5000));
        // [`Parsed::Long`] is returned once.
        assert!(matches!(parser.parse(line, &LIMITS), Ok(Parsed::Partial(5018))));
        let mut writer = store.long(5000, 0).unwrap();
        writer.fill(&[b'x'; 5000]);
        parser.give(writer.finish(), end);
        let (given, len) = data(&mut parser);
        assert_eq!((matches!(given, Data::Long(_)), matches!(given, Data::Unended)), (is_whole, !is_whole));
        assert_eq!((len, parser.is_within()), (line.len(), false));
        assert_eq!(long_data(&mut parser), (line.len(), 5000));
    }
    let mut parser = Parser::default();
    long_data(&mut parser);
    parser.refuse(5002);
    assert!(matches!(data(&mut parser), (Data::Full, _)));
    assert!(matches!(parser.parse(&[b'x'; 5000], &LIMITS), Ok(Parsed::Skip(5000))));
    assert!(matches!(parser.parse(b"\r\nmn\r\n", &LIMITS), Ok(Parsed::Skip(2))));
    assert!(!parser.is_within());
}
