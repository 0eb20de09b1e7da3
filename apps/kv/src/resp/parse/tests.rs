use super::*;
use linerate_service::Bytes;
use proptest::prelude::*;

const KNOWN: Limits = Limits { bulk: 512 << 20, long: usize::MAX, apart: false, authenticated: true };

/// Returns all requests in `bytes`, received in parts that end at `cuts`.
fn requests(bytes: &[u8], cuts: &[usize], limits: Limits) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    let mut parser = Parser::default();
    let mut requests = Vec::new();
    let mut start = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        loop {
            let data = &bytes[start..end.max(start)];
            if data.is_empty() {
                break;
            }
            match parser.parse(data, limits)? {
                Parsed::Request(len) => {
                    requests.push(parser.args(data).iter().map(<[u8]>::to_vec).collect());
                    assert!(!parser.is_within());
                    start += len;
                }
                Parsed::Long { .. } => unreachable!("none is long"),
                Parsed::Partial(needed) => {
                    assert!(needed > data.len() && parser.is_within());
                    break;
                }
            }
        }
    }
    Ok(requests)
}

fn whole(bytes: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    requests(bytes, &[], KNOWN)
}

fn encoded(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn request() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let byte = prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'$'), Just(b'*'), any::<u8>()];
    prop::collection::vec(prop::collection::vec(byte, 0..20), 1..6)
}

proptest! {
    #[test]
    fn requests_do_not_depend_on_cuts(
        all in prop::collection::vec(request(), 1..5),
        mut cuts in prop::collection::vec(0..300usize, 0..12),
    ) {
        let bytes = all.iter().map(|args| encoded(args)).collect::<Vec<_>>().concat();
        cuts.iter_mut().for_each(|cut| *cut = (*cut).min(bytes.len()));
        cuts.sort();
        prop_assert_eq!(requests(&bytes, &cuts, KNOWN), Ok(all.clone()));
        let each: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(requests(&bytes, &each, KNOWN), Ok(all));
    }
}

#[test]
fn inline_commands_are_parsed() {
    let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    assert_eq!(whole(b"PING\r\nset a b\n"), Ok(vec![words("PING"), words("set a b")]));
    assert_eq!(whole(b"set \"\" ''\r\n"), Ok(vec![vec![b"set".to_vec(), vec![], vec![]]]));
    assert_eq!(whole(b"\r\n\n*0\r\n*-5\r\n"), Ok(vec![vec![]; 4]));
    assert_eq!(whole(b"\"\"\r\n*1\r\n$4\r\nPING\r\n"), Ok(vec![vec![vec![]], words("PING")]));
}

#[test]
fn protocol_errors_have_the_words_of_redis() {
    let error_of = |bytes: &[u8]| whole(bytes).unwrap_err().to_string();
    assert_eq!(error_of(b"*abc\r\n"), "Protocol error: invalid multibulk length");
    assert_eq!(error_of(b"*2147483648\r\n"), "Protocol error: invalid multibulk length");
    assert_eq!(error_of(b"*1\r\n:3\r\n"), "Protocol error: expected '$', got ':'");
    assert_eq!(error_of(b"*1\r\n$-1\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(error_of(b"*1\r\n$536870913\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(error_of(b"*1\r\n$99999999999999999999\r\n"), "Protocol error: invalid bulk length");
    assert_eq!(error_of(b"get \"a\r\n"), "Protocol error: unbalanced quotes in request");
    assert_eq!(error_of(&[b'a'; LINE + 1]), "Protocol error: too big inline request");
    assert_eq!(error_of(&[&b"*"[..], &[b'1'; LINE]].concat()), "Protocol error: too big mbulk count string");
    assert_eq!(error_of(&[&b"*1\r\n$"[..], &[b'1'; LINE]].concat()), "Protocol error: too big bulk count string");
}

#[test]
fn line_limit_does_not_depend_on_cuts() {
    let is_too_long = |before: &str, len: usize, after: &str| {
        let bytes = [before.as_bytes(), &vec![b'1'; len - 1], after.as_bytes()].concat();
        let cut = bytes.len() - after.len();
        let [whole, cut] = [&[][..], &[cut]].map(|cuts| requests(&bytes, cuts, KNOWN));
        assert_eq!(whole, cut);
        let error_of = whole.err().map(|error| error.to_string());
        error_of.is_some_and(|error_of| error_of.contains("too big"))
    };
    for (before, after) in [("g", "\n"), ("*", "\r\n"), ("*1\r\n$", "\r\n")] {
        assert!(!is_too_long(before, LINE, after) && is_too_long(before, LINE + 1, after), "{before:?}");
    }
}

#[test]
fn unauthenticated_client_has_lower_limits() {
    let limits = Limits { authenticated: false, ..KNOWN };
    assert_eq!(requests(b"*11\r\n", &[], limits), Err(ProtocolError::UnauthenticatedCount));
    assert_eq!(requests(b"*1\r\n$16385\r\n", &[], limits), Err(ProtocolError::UnauthenticatedLength));
    assert_eq!(requests(b"*2\r\n$4\r\nAUTH\r\n$3\r\nabc\r\n", &[], limits).map(|all| all.len()), Ok(1));
    // The limits themselves are allowed.
    assert_eq!(requests(b"*10\r\n$16384\r\n", &[], limits), Ok(vec![]));
}

#[test]
fn argument_of_the_maximum_length_is_accepted() {
    let limits = Limits { bulk: 3, ..KNOWN };
    assert_eq!(requests(b"*1\r\n$3\r\nabc\r\n", &[], limits).map(|all| all.len()), Ok(1));
    assert_eq!(requests(b"*1\r\n$4\r\n", &[], limits), Err(ProtocolError::Length));
}

#[test]
fn partial_result_states_missing_bytes_of_argument() {
    let mut parser = Parser::default();
    let data = b"*2\r\n$3\r\nGET\r\n$1000\r\nabc";
    assert_eq!(parser.parse(data, KNOWN), Ok(Parsed::Partial(data.len() - 3 + 1000 + 2)));
}

#[test]
fn huge_count_allocates_nothing() {
    let mut parser = Parser::default();
    assert_eq!(parser.parse(b"*2147483647\r\n", KNOWN), Ok(Parsed::Partial(14)));
    assert!(parser.args.capacity() <= KEPT);
}

#[test]
fn long_argument_not_taken_out_is_parsed_like_others() {
    let mut parser = Parser::default();
    let limits = Limits { long: 10, ..KNOWN };
    let data = encoded(&[b"SET".to_vec(), b"a".to_vec(), vec![b'x'; 100]]);
    let at = data.len() - 102;
    assert_eq!(parser.parse(&data[..at + 50], limits), Ok(Parsed::Long { at, len: 100 }));
    assert_eq!(parser.parse(&data[..at + 60], limits), Ok(Parsed::Partial(data.len())));
    assert_eq!(parser.parse(&data, limits), Ok(Parsed::Request(data.len())));
    assert_eq!(parser.args(&data).longs().count(), 0);
    // Memory is only allocated for authenticated clients.
    let limits = Limits { authenticated: false, ..limits };
    assert_eq!(Parser::default().parse(&data[..at + 50], limits), Ok(Parsed::Partial(data.len())));
}

#[test]
fn long_argument_is_released_with_its_request() {
    let mut parser = Parser::default();
    let limits = Limits { long: 10, ..KNOWN };
    let data = b"*2\r\n$4\r\nECHO\r\n$10\r\n";
    assert_eq!(parser.parse(data, limits), Ok(Parsed::Long { at: data.len(), len: 10 }));
    parser.give(Long::from_parts([Bytes::from(b"0123456789".to_vec())]));
    assert_eq!(parser.parse(data, limits), Ok(Parsed::Request(data.len())));
    let args = parser.args(data);
    assert_eq!((args.len(), args.longs().collect::<Vec<_>>(), &args[1]), (2, vec![1], &b""[..]));
    assert_eq!(args.prefix(1, 4), b"0123");
    assert_eq!(args.to_owned().args().to_whole().args().at(1), b"0123456789");
    parser.forget();
    assert_eq!(parser.args(data).longs().count(), 0);
}
