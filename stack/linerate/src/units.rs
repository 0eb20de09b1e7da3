//! Parsers of durations, sizes and addresses on the command line.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Parses a duration: `20us`, `500ms`, `5s`, `2m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        _ => return Err("write a number and us, ms, s or m, such as 500ms, 5s or 2m".to_owned()),
    };
    let count: u64 = text[..text.len() - unit.len()].parse().map_err(|_| "the number is missing or too large")?;
    match count.checked_mul(micros) {
        Some(0) => Err("the duration must be positive".to_owned()),
        Some(micros) => Ok(Duration::from_micros(micros)),
        None => Err("the number is too large".to_owned()),
    }
}

/// Parses a duration or zero: `0`, `500ms`.
pub fn parse_duration_or_none(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

/// Parses an address or a host name with a port: `10.0.0.2:7`, `[::1]:7`, `localhost:7`. The resolver of the operating
/// system resolves the name, to an IPv4 address if there is one.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    resolve(text, None)
}

/// Parses an address or a host name, with a port if it is not `port`.
pub fn parse_address_or_port(text: &str, port: u16) -> Result<SocketAddr, String> {
    resolve(text, Some(port))
}

fn resolve(text: &str, default: Option<u16>) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let ip = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = ip.parse::<IpAddr>() {
        let missing = || format!("the port is missing: write {}", SocketAddr::new(ip, 7));
        return default.map(|port| SocketAddr::new(ip, port)).ok_or_else(missing);
    }
    let (name, port) = text.rsplit_once(':').map_or((text, default), |(name, port)| (name, port.parse().ok()));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let advice = || match default {
        None => "write an address and a port, such as 10.0.0.2:7 or [::1]:7".to_owned(),
        Some(port) => format!("give an address, with a port if it is not {port}, such as 10.0.0.2:{port}"),
    };
    if !name.contains(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_name) {
        return Err(advice());
    }
    let port = port.ok_or_else(|| format!("the port is missing: write {name}:7"))?;
    let found = (name, port).to_socket_addrs().map_err(|error| format!("host name {name}: {error}: {}", advice()))?;
    found.min_by_key(SocketAddr::is_ipv6).ok_or_else(|| format!("host name {name}: no address"))
}

/// Parses a number of bytes: `65536`, `64k`, `1m` (binary multiples).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let shift = match unit {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        _ => return Err("write a number of bytes, or one with k or m, such as 65536, 64k or 1m".to_owned()),
    };
    let count: usize = text[..text.len() - unit.len()].parse().map_err(|_| "the number is missing or too large")?;
    match count.checked_mul(1 << shift) {
        Some(size @ 1..=0x4000_0000) => Ok(size),
        _ => Err("it must be at least 1 and at most 1024m".to_owned()),
    }
}

/// Parses a number of bytes or zero: `0`, `64k`.
pub fn parse_size_or_none(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}

/// Parses a large number of bytes: `512m`, `4g` (binary multiples).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_bytes_up_to(text, 32)
}

/// Parses a number of bytes as [`parse_bytes`] does, up to 1024g.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    parse_bytes_up_to(text, 1024)
}

/// Parses a number of bytes as [`parse_memory`] does, or zero.
pub fn parse_memory_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_memory(text) }
}

/// Parses a number of bytes up to `most` GiB.
fn parse_bytes_up_to(text: &str, most: u64) -> Result<u64, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let shift = match unit {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err("write a number of bytes, or one with k, m or g, such as 512m or 4g".to_owned()),
    };
    let count: u64 = text[..text.len() - unit.len()].parse().map_err(|_| "the number is missing or too large")?;
    match count.checked_mul(1 << shift) {
        Some(bytes) if (1 << 22..=most << 30).contains(&bytes) => Ok(bytes),
        _ => Err(format!("it must be at least 4m and at most {most}g")),
    }
}

/// Formats a duration as [`parse_duration_or_none`] parses it, in its largest unit: `0`, `500ms`, `5s`. Fractions of
/// microseconds are omitted.
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units = [("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];
    let unit = units.iter().find(|(_, unit)| micros > 0 && micros.is_multiple_of(*unit));
    unit.map_or("0".to_owned(), |(name, unit)| format!("{}{name}", micros / unit))
}

/// Formats a number of bytes as [`parse_bytes`] parses it, in its largest unit: `100`, `64k`, `1g`.
pub fn format_size(bytes: u64) -> String {
    let unit =
        [("g", 30), ("m", 20), ("k", 10)].iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or(bytes.to_string(), |(name, shift)| format!("{}{name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "5", "s", "0s", "-1s", "1.5s", "5 s", "5h", "99999999999999999999s", "18446744073709551615m"] {
            assert!(parse_duration(text).is_err(), "{text}");
            assert!(parse_duration_or_none(text).is_err(), "{text}");
        }
        assert!(parse_duration("0").is_err());
        assert_eq!(parse_duration_or_none("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration_or_none("500ms"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn formatted_values_have_the_largest_unit() {
        for text in ["0", "20us", "1500us", "500ms", "5s", "90s", "2m"] {
            assert_eq!(format_duration(parse_duration_or_none(text).unwrap()), text);
        }
        for text in ["0", "64", "1000", "64k", "1m"] {
            assert_eq!(format_size(parse_size_or_none(text).unwrap() as u64), text);
        }
        assert_eq!(format_size(parse_bytes("4g").unwrap()), "4g");
    }

    #[test]
    fn addresses_have_a_port_and_host_names_are_resolved() {
        for text in ["10.0.0.2:7", "[::1]:7"] {
            assert_eq!(parse_address(text).unwrap().to_string(), text);
            assert_eq!(parse_address_or_port(text, 9).unwrap().to_string(), text);
        }
        let local = parse_address("localhost:7007").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 7007, "{local}");
        assert_eq!(parse_address_or_port("localhost", 7007), Ok(local));
        for (text, expected) in [("10.0.0.2", "10.0.0.2:9"), ("::1", "[::1]:9"), ("[::1]", "[::1]:9")] {
            assert_eq!(parse_address_or_port(text, 9).unwrap().to_string(), expected);
            assert!(parse_address(text).unwrap_err().starts_with("the port is missing: write "), "{text}");
        }
        let long = format!("{}.invalid:7", "x".repeat(64));
        for (text, part) in [
            ("", "write an address and a port"),
            ("7", "write an address and a port"),
            ("10.0.0.256:7", "write an address and a port"),
            ("10.0.0.2:70000", "write an address and a port"),
            ("a b:7", "write an address and a port"),
            ("localhost", "the port is missing: write localhost:7"),
            ("localhost:", "the port is missing: write localhost:7"),
            (&long, "host name xxx"),
        ] {
            let error = parse_address(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse_address_or_port("10.0.0.256", 9).unwrap_err().contains("such as 10.0.0.2:9"));
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("64k"), Ok(65_536));
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        for text in ["", "k", "0", "-1", "1g", "1025m", "18446744073709551615k"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!((parse_bytes("32g"), parse_memory("1024g")), (Ok(1 << 35), Ok(1 << 40)));
        assert!(parse_bytes("33g").is_err() && parse_memory("1025g").is_err());
        assert_eq!((parse_size_or_none("0"), parse_size_or_none("64k")), (Ok(0), Ok(65_536)));
    }
}
