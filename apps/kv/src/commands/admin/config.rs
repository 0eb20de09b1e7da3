//! `CONFIG` commands.

use crate::commands::data::glob;
use crate::commands::error::{CommandError, CommandResult, SYNTAX};
use crate::commands::server::{RejectedSetting, Settings, TlsSettings};
use crate::commands::{Context, Request, Session};
use crate::resp::{Args, Reply, number};
use crate::store::{DATABASES, Evictable, EvictionPolicy};
use std::ops::RangeInclusive;

/// Maximum of `slowlog-max-len`. Each worker keeps up to this many entries of up to 5 KB.
const MAX_SLOW_ENTRIES: i64 = 1 << 16;

/// Minimum of the limits of requests and of the memory of clients, as in Redis. Below it no client could raise them.
const LEAST_BUFFER: i64 = 1 << 20;

/// Eviction policies by their names in Redis.
const POLICIES: [(&str, EvictionPolicy); 8] = [
    ("volatile-lru", EvictionPolicy::Lru(Evictable::Volatile)),
    ("volatile-lfu", EvictionPolicy::Lfu(Evictable::Volatile)),
    ("volatile-random", EvictionPolicy::Random(Evictable::Volatile)),
    ("volatile-ttl", EvictionPolicy::Ttl),
    ("allkeys-lru", EvictionPolicy::Lru(Evictable::AllKeys)),
    ("allkeys-lfu", EvictionPolicy::Lfu(Evictable::AllKeys)),
    ("allkeys-random", EvictionPolicy::Random(Evictable::AllKeys)),
    ("noeviction", EvictionPolicy::None),
];

/// Configuration parameter.
struct Parameter {
    name: &'static str,
    shown: Shown,
    set: Option<Setter>,
}

/// Returns the value shown to a client.
type Shown = fn(&Settings, &Session) -> String;
type Setter = fn(&mut Settings, &[u8]) -> Result<(), String>;

const fn fixed(name: &'static str, shown: Shown) -> Parameter {
    Parameter { name, shown, set: None }
}

const fn settable(name: &'static str, shown: Shown, set: Setter) -> Parameter {
    Parameter { name, shown, set: Some(set) }
}

/// Supported parameters of Redis: settable parameters, and parameters that clients and tools read.
const PARAMETERS: &[Parameter] = &[
    settable("maxmemory", |of, _| of.memory.to_string(), |of, value| memory(value).map(|bytes| of.memory = bytes)),
    settable(
        "maxmemory-policy",
        |of, _| policy_name(of.evict).to_owned(),
        |of, value| policy(value).map(|policy| of.evict = policy),
    ),
    settable(
        "maxmemory-clients",
        |of, _| of.client_memory.to_string(),
        |of, value| limit(value, true).map(|bytes| of.client_memory = bytes),
    ),
    settable(
        "maxclients",
        |of, _| of.clients.to_string(),
        |of, value| integer(value, 1..=u32::MAX.into()).map(|count| of.clients = count as u32),
    ),
    settable(
        "timeout",
        |of, _| of.timeout.to_string(),
        |of, value| integer(value, 0..=i32::MAX.into()).map(|seconds| of.timeout = seconds as u32),
    ),
    settable(
        "proto-max-bulk-len",
        |of, _| of.bulk.to_string(),
        |of, value| limit(value, false).map(|bytes| of.bulk = bytes),
    ),
    settable(
        "requirepass",
        |of, _| of.password.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned(),
        |of, value| {
            of.password = (!value.is_empty()).then(|| value.to_vec());
            Ok(())
        },
    ),
    settable(
        "client-query-buffer-limit",
        |of, _| of.query.to_string(),
        |of, value| limit(value, false).map(|bytes| of.query = bytes),
    ),
    settable(
        "slowlog-log-slower-than",
        |of, _| of.slow_micros.to_string(),
        |of, value| integer(value, -1..=i64::MAX).map(|micros| of.slow_micros = micros),
    ),
    settable(
        "slowlog-max-len",
        |of, _| of.slow_entries.to_string(),
        |of, value| integer(value, 0..=MAX_SLOW_ENTRIES).map(|count| of.slow_entries = count as u64),
    ),
    fixed("client-output-buffer-limit", |settings, _| {
        format!("normal {} 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60", settings.output)
    }),
    fixed("port", |settings, session| port(settings, session, false).to_string()),
    fixed("tls-port", |settings, session| port(settings, session, true).to_string()),
    fixed("tls-cert-file", |settings, _| of_tls(settings, |tls| &tls.cert)),
    fixed("tls-key-file", |settings, _| of_tls(settings, |tls| &tls.key)),
    fixed("tls-ca-cert-file", |settings, _| of_tls(settings, |tls| &tls.client_ca)),
    fixed("tls-auth-clients", |settings, _| settings.tls.as_ref().map_or("no", |tls| tls.client_auth).to_owned()),
    fixed("tls-protocols", |_, _| "TLSv1.3".to_owned()),
    fixed("databases", |_, _| DATABASES.to_string()),
    fixed("save", |_, _| String::new()),
    fixed("appendonly", |_, _| "no".to_owned()),
    fixed("notify-keyspace-events", |_, _| String::new()),
    fixed("cluster-enabled", |settings, _| if settings.is_cluster { "yes" } else { "no" }.to_owned()),
    fixed("maxmemory-samples", |_, _| "16".to_owned()),
    fixed("lazyfree-lazy-user-flush", |_, _| "yes".to_owned()),
];

/// Returns the port with or without TLS of the node that a client is connected to, or 0.
fn port(settings: &Settings, session: &Session, is_tls: bool) -> u16 {
    let local = session.local.port();
    let first = |is_tls| settings.tls.as_ref().map_or(0, |tls| if is_tls { tls.port } else { tls.plain_port });
    match first(is_tls) {
        _ if session.is_tls == is_tls => local,
        0 => 0,
        port if settings.is_cluster => port.wrapping_add(local.wrapping_sub(first(session.is_tls))),
        port => port,
    }
}

fn of_tls(settings: &Settings, part: fn(&TlsSettings) -> &String) -> String {
    settings.tls.as_ref().map(part).cloned().unwrap_or_default()
}

/// Returns the name of a policy in Redis.
pub fn policy_name(evict: EvictionPolicy) -> &'static str {
    POLICIES.iter().find(|(_, policy)| *policy == evict).map_or("noeviction", |(name, _)| name)
}

fn policy(value: &[u8]) -> Result<EvictionPolicy, String> {
    let found = POLICIES.iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(value));
    found.map(|(_, policy)| *policy).ok_or_else(|| {
        let names = POLICIES.map(|(name, _)| name).join(", ");
        format!("argument(s) must be one of the following: {names}")
    })
}

/// Parses a number of bytes with an optional unit: `100mb`.
fn memory(value: &[u8]) -> Result<u64, String> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let unit = match &value[digits..].to_ascii_lowercase()[..] {
        b"" | b"b" => Some(1),
        b"k" => Some(1000),
        b"kb" => Some(1 << 10),
        b"m" => Some(1_000_000),
        b"mb" => Some(1 << 20),
        b"g" => Some(1_000_000_000),
        b"gb" => Some(1 << 30),
        _ => None,
    };
    let number = std::str::from_utf8(&value[..digits]).ok().and_then(|digits| digits.parse::<u64>().ok());
    let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    bytes.ok_or_else(|| "argument must be a memory value".to_owned())
}

/// Parses the limit of a buffer. `may_be_off` also allows 0.
fn limit(value: &[u8], may_be_off: bool) -> Result<u64, String> {
    let bytes = i64::try_from(memory(value)?).unwrap_or(i64::MAX);
    if may_be_off && bytes == 0 { Ok(0) } else { within(bytes, LEAST_BUFFER..=i64::MAX).map(|bytes| bytes as u64) }
}

fn integer(value: &[u8], range: RangeInclusive<i64>) -> Result<i64, String> {
    let number = number::parse(value).ok_or_else(|| "argument couldn't be parsed into an integer".to_owned())?;
    within(number, range)
}

fn within(number: i64, range: RangeInclusive<i64>) -> Result<i64, String> {
    if range.contains(&number) {
        Ok(number)
    } else {
        Err(format!("argument must be between {} and {} inclusive", range.start(), range.end()))
    }
}

pub fn get(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let settings = cx.server.settings();
    let is_selected = |parameter: &&Parameter| {
        let name = parameter.name.as_bytes();
        // No name is long enough to match a longer pattern.
        let mut patterns = request.args.iter().skip(2).filter(|pattern| pattern.len() <= glob::LONGEST);
        patterns.any(|pattern| glob::is_match_ignoring_case(pattern, name))
    };
    let selected: Vec<&Parameter> = PARAMETERS.iter().filter(is_selected).collect();
    reply.map(selected.len());
    for parameter in selected {
        reply.bulk(parameter.name.as_bytes());
        reply.bulk((parameter.shown)(settings, cx.session).as_bytes());
    }
    Ok(())
}

pub fn set(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if request.args.len() % 2 == 1 {
        return Err(SYNTAX);
    }
    let pairs = pairs(request.args)?;
    let session = &*cx.session;
    let mut change = |settings: &mut Settings| {
        for (parameter, value) in &pairs {
            let result = match parameter.set {
                Some(set) => set(settings, value),
                // The value does not change.
                None if (parameter.shown)(settings, session).as_bytes() == *value => Ok(()),
                None => Err("can't set immutable config".to_owned()),
            };
            result.map_err(|reason| RejectedSetting { parameter: parameter.name, reason })?;
        }
        Ok(())
    };
    cx.server.update(&mut change).map_err(|RejectedSetting { parameter, reason }| failed(parameter, &reason))?;
    // Other workers apply the settings to their shards when they are notified.
    let count = cx.shards.count() as u64;
    let settings = cx.server.settings();
    for store in cx.shards.all() {
        store.set_memory((settings.memory / count) as usize);
        store.set_evict(settings.evict);
    }
    reply.ok();
    Ok(())
}

/// Returns the parameters to be set, each once, with their values.
fn pairs(args: Args<'_>) -> Result<Vec<(&'static Parameter, &[u8])>, CommandError> {
    let mut pairs: Vec<(&Parameter, &[u8])> = Vec::new();
    for at in (2..args.len()).step_by(2) {
        let name = args.at(at);
        let found = PARAMETERS.iter().find(|parameter| parameter.name.as_bytes().eq_ignore_ascii_case(name));
        let Some(parameter) = found else {
            return Err(CommandError::concat(&[
                b"ERR Unknown option or number of arguments for CONFIG SET - '",
                name,
                b"'",
            ]));
        };
        if pairs.iter().any(|(other, _)| other.name == parameter.name) {
            return Err(failed(parameter.name, "duplicate parameter"));
        }
        pairs.push((parameter, args.at(at + 1)));
    }
    Ok(pairs)
}

fn failed(name: &str, reason: &str) -> CommandError {
    let text = format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}");
    CommandError::concat(&[text.as_bytes()])
}

pub fn resetstat(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.server.reset_totals(cx.stats);
    reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::TestClient;

    #[test]
    fn config_gets_and_sets_parameters() {
        for mut client in TestClient::each() {
            client.expect("config get maxmemory", "*2 $9 maxmemory $10 1073741824");
            client.expect("config set maxmemory 4mb maxmemory-policy allkeys-lru", "+OK");
            client.expect("config get MAXMEM*Y", "*4 $9 maxmemory $7 4194304 $16 maxmemory-policy $11 allkeys-lru");
            client.expect("config get save appendonly nosuch", "*4 $4 save $0  $10 appendonly $2 no");
            client.expect("config set timeout 30 maxclients 5", "+OK");
            assert_eq!((client.server.settings.timeout, client.server.settings.clients), (30, 5));
            client.expect("config set maxmemory-clients 2mb", "+OK");
            client.expect("config get maxmemory-clients", "*2 $17 maxmemory-clients $7 2097152");
            client.expect("config set maxmemory-clients 0", "+OK");
            client.expect("config set save \"\"", "+OK");
            // Local port of the connection.
            client.expect("config get port", "*2 $4 port $4 6380");
            client.expect("config set port 6380", "+OK");
            client.run("hello 3");
            client.expect("config get timeout", "%1 $7 timeout $2 30");
            client.expect("get nosuch", "_");
            let before = client.stats;
            client.expect("config resetstat", "+OK");
            assert_eq!(client.stats.commands, before.commands + 1, "counters of the worker never decrease");
            let info = client.run("info stats");
            for count in ["total_commands_processed:1 ", "keyspace_misses:0 "] {
                assert!(info.contains(count), "{count} in {info}");
            }
            client.expect("get nosuch", "_");
            assert!(client.run("info stats").contains("keyspace_misses:1 "));
        }
    }

    #[test]
    fn config_gets_tls_of_the_server_and_the_port_of_the_client() {
        for mut client in TestClient::each() {
            client.expect("config get tls-*t", "*2 $8 tls-port $1 0");
            client.server.settings.tls = Some(TlsSettings {
                plain_port: 6380,
                port: 6390,
                cert: "/c.pem".to_owned(),
                key: "/c.key".to_owned(),
                client_ca: String::new(),
                client_auth: "no",
            });
            client.expect("config get tls-port tls-cert-file", "*4 $8 tls-port $4 6390 $13 tls-cert-file $6 /c.pem");
            client.expect(
                "config get tls-ca-cert-file tls-auth-clients",
                "*4 $16 tls-ca-cert-file $0  $16 tls-auth-clients $2 no",
            );
            // A client with TLS, whose local port is 6380.
            client.session.set_tls(true);
            client.server.settings.tls.as_mut().unwrap().plain_port = 0;
            client.expect("config get port tls-port", "*4 $4 port $1 0 $8 tls-port $4 6380");
            client.server.settings.tls.as_mut().unwrap().plain_port = 7000;
            client.expect("config get port tls-port", "*4 $4 port $4 7000 $8 tls-port $4 6380");
        }
    }

    #[test]
    fn config_set_with_invalid_value_changes_nothing() {
        for mut client in TestClient::each() {
            let before = client.server.settings.clone();
            let too_small = "argument must be between 1048576 and 9223372036854775807 inclusive";
            for (wrong, name, reason) in [
                ("timeout 5 maxmemory x", "maxmemory", "argument must be a memory value"),
                ("timeout 9 maxclients 60000", "maxclients", "too many connections"),
                ("client-query-buffer-limit 0", "client-query-buffer-limit", too_small),
                ("client-query-buffer-limit 1048575", "client-query-buffer-limit", too_small),
                ("maxmemory-clients 1", "maxmemory-clients", too_small),
            ] {
                let error = format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}");
                client.expect(&format!("config set {wrong}"), &error);
            }
            assert_eq!(client.server.settings, before);
        }
    }

    #[test]
    fn memory_values_have_units() {
        for (text, bytes) in [("0", 0), ("1k", 1000), ("2KB", 2048), ("3m", 3_000_000), ("1Gb", 1 << 30), ("7b", 7)] {
            assert_eq!(memory(text.as_bytes()), Ok(bytes));
        }
        for text in ["", "k", "1kk", "-1", "1.5", "18446744073709551616", "18446744073709551615k"] {
            assert!(memory(text.as_bytes()).is_err(), "{text}");
        }
    }
}
