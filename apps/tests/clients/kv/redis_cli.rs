//! redis-cli: interactive commands and tools.

use super::clients::{Server, bounded, output_of};
use std::fmt::Write as _;
use std::io::{Seek, Write as _};
use std::process::{Command, Output, Stdio};

/// Commands and their output, in both versions of the protocol.
const TYPED: &[(&str, &str)] = &[
    ("FLUSHALL", "OK"),
    ("SET greeting \"hello\\r\\nworld\" EX 100", "OK"),
    ("get greeting", r#""hello\r\nworld""#),
    ("TTL greeting", "(integer) 100"),
    ("GET absent", "(nil)"),
    ("INCR greeting", "(error) ERR value is not an integer or out of range"),
    ("INCRBY n 5", "(integer) 5"),
    ("MGET n absent", "1) \"5\"\n2) (nil)"),
    ("TYPE n", "string"),
    ("OBJECT ENCODING n", r#""int""#),
    ("HSET h f v", "(integer) 1"),
    ("NOSUCH l x", "(error) ERR unknown command 'NOSUCH', with args beginning with: 'l' 'x' "),
    ("GET", "(error) ERR wrong number of arguments for 'get' command"),
    ("HGET n f", "(error) WRONGTYPE Operation against a key holding the wrong kind of value"),
    ("KEYS nosuch*", "(empty array)"),
    ("MULTI", "OK"),
    ("SET a 1", "QUEUED"),
    ("INCR a", "QUEUED"),
    ("EXEC", "1) OK\n2) (integer) 2"),
    ("EXEC", "(error) ERR EXEC without MULTI"),
    ("SELECT 3", "OK"),
    ("DBSIZE", "(integer) 0"),
    ("SELECT 16", "(error) ERR DB index is out of range"),
    ("SELECT 0", "OK"),
    ("DBSIZE", "(integer) 4"),
    ("CLIENT SETNAME me", "OK"),
    ("CLIENT GETNAME", r#""me""#),
];
/// Commands whose output differs between the versions.
const MAPS: [(&str, &str, &str); 2] = [
    ("HGETALL h", "1) \"f\"\n2) \"v\"", "1# \"f\" => \"v\""),
    ("CONFIG GET databases", "1) \"databases\"\n2) \"16\"", "1# \"databases\" => \"16\""),
];
/// Number of keys in the database for the tools, which scan ten at a time.
const KEYS: usize = 1_000;

#[track_caller]
pub fn try_on(server: &Server) {
    for version in ["-2", "-3"] {
        interactive_commands(server, version);
    }
    pipe(server);
    tools(server);
    large_values(server);
    passwords(server);
}

/// Returns the command of redis-cli with the connection options.
fn command(server: &Server) -> Command {
    let (ip, port) = (server.redis.ip().to_string(), server.redis.port().to_string());
    let mut command = bounded("redis-cli");
    command.args(["-h", &ip, "-p", &port]);
    command.args(server.password.iter().flat_map(|password| ["--no-auth-warning", "-a", password]));
    command
}

/// Runs redis-cli with `args` and returns its output.
#[track_caller]
pub fn redis_cli(server: &Server, args: &str) -> String {
    let output = command(server).arg("--no-raw").args(args.split(' ')).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{args}: {}", output_of(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `command` with `input` on standard input.
fn with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    command.stdin(Stdio::from(file)).output().unwrap()
}

#[track_caller]
fn interactive_commands(server: &Server, version: &str) {
    let maps = MAPS.map(|(line, v2, v3)| (line, if version == "-3" { v3 } else { v2 }));
    let (mut input, mut expected) = (String::new(), String::new());
    for (line, shown) in TYPED.iter().copied().chain(maps) {
        writeln!(input, "{line}").unwrap();
        writeln!(expected, "{shown}").unwrap();
    }
    let output = with_input(command(server).args(["--no-raw", version]), input.as_bytes());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{version}: {}", output_of(&output));
}

/// Loads many commands in the wire protocol with --pipe.
#[track_caller]
fn pipe(server: &Server) {
    assert_eq!(redis_cli(server, "FLUSHALL"), "OK\n");
    let mut commands = String::new();
    for n in 0..KEYS {
        let (key, value) = (format!("key:{n}"), "x".repeat(n % 100));
        write!(commands, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len()).unwrap();
    }
    let output = with_input(command(server).arg("--pipe"), commands.as_bytes());
    assert!(output_of(&output).contains(&format!("errors: 0, replies: {KEYS}")), "{}", output_of(&output));
    assert_eq!(redis_cli(server, "DBSIZE"), format!("(integer) {KEYS}\n"));
}

#[track_caller]
fn tools(server: &Server) {
    let names = redis_cli(server, "--scan --pattern key:*");
    let mut names: Vec<_> = names.lines().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), KEYS);
    redis_cli(server, "HSET session user anna hits 7");
    let big = redis_cli(server, "--bigkeys");
    assert!(big.contains(&format!("Sampled {} keys", KEYS + 1)) && big.contains("has 99 bytes"), "{big}");
    assert!(big.contains("Biggest   hash found '\"session\"' has 2 fields"), "{big}");
    let memory = redis_cli(server, "--memkeys");
    assert!(memory.contains("1 hashs with") && !memory.contains("rror"), "{memory}");
    assert_eq!(redis_cli(server, "CONFIG SET maxmemory-policy allkeys-lfu"), "OK\n");
    let hot = redis_cli(server, "--hotkeys");
    assert!(hot.contains(&format!("Sampled {} keys", KEYS + 1)) && !hot.contains("rror"), "{hot}");
    assert_eq!(redis_cli(server, "CONFIG SET maxmemory-policy noeviction"), "OK\n");
    assert_eq!(redis_cli(server, "--json HGETALL session"), "{\"user\":\"anna\",\"hits\":\"7\"}\n");
    assert_eq!(redis_cli(server, "-r 3 INCR counter"), "(integer) 1\n(integer) 2\n(integer) 3\n");
    assert_eq!(redis_cli(server, "-n 3 DBSIZE"), "(integer) 0\n");
    let info = redis_cli(server, "INFO");
    assert!(info.contains("redis_version:") && info.contains(&format!("db0:keys={}", KEYS + 2)), "{info}");
}

/// Writes a value from standard input and reads it to standard output.
#[track_caller]
fn large_values(server: &Server) {
    let value: Vec<u8> = (0..1 << 20).map(|_| fastrand::u8(..)).collect();
    let output = with_input(command(server).args(["-x", "SET", "large"]), &value);
    assert!(output.stdout == b"OK\n", "{}", output_of(&output));
    let output = command(server).args(["--raw", "GET", "large"]).output().unwrap();
    assert!(output.stdout.strip_suffix(b"\n") == Some(&value), "{} bytes came back", output.stdout.len());
}

#[track_caller]
fn passwords(server: &Server) {
    if server.password.is_some() {
        let without_password = Server { password: None, ..*server };
        assert_eq!(redis_cli(&without_password, "GET x"), "(error) NOAUTH Authentication required.\n");
        let output = command(&Server { password: Some("wrong"), ..*server }).arg("PING").output().unwrap();
        assert!(output_of(&output).contains("WRONGPASS invalid username-password pair or user is disabled."));
    }
}
