//! `INFO` command.

use crate::commands::admin::config::policy_name;
use crate::commands::error::CommandResult;
use crate::commands::session::connection::VERSION;
use crate::commands::{Context, Request, Totals};
use crate::resp::Reply;
use linerate_bypass::CpuTime;
use std::fmt::Write;

type Section = fn(&mut String, &mut Context<'_, '_>, &Totals);

/// Sections in order of output.
const SECTIONS: [(&str, Section); 9] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

pub fn info(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let is_selected = |section: &str| {
        let mut names = request.args.iter().skip(1);
        let every = [section, "all", "default", "everything"];
        request.args.len() == 1 || names.any(|name| every.iter().any(|is| name.eq_ignore_ascii_case(is.as_bytes())))
    };
    // Other workers publish the memory in use of their shards periodically.
    cx.shards.all().for_each(|store| store.publish_used());
    let totals = cx.server.totals(cx.stats);
    let mut text = String::new();
    for (name, section) in SECTIONS.iter().filter(|(name, _)| is_selected(name)) {
        if !text.is_empty() {
            text += "\r\n";
        }
        text += &format!("# {name}\r\n");
        section(&mut text, cx, &totals);
    }
    reply.verbatim(text.as_bytes());
    Ok(())
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a `String` cannot fail.
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(text: &mut String, cx: &mut Context<'_, '_>, totals: &Totals) {
    let seconds = cx.now.saturating_sub(totals.since) / 1000;
    line(text, "redis_version", VERSION);
    line(text, "linerate_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", if cx.server.cluster().is_some() { "cluster" } else { "standalone" });
    line(text, "os", std::env::consts::OS);
    line(text, "arch_bits", usize::BITS);
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", cx.session.local.port());
    line(text, "server_time_usec", cx.wall() * 1000);
    line(text, "uptime_in_seconds", seconds);
    line(text, "uptime_in_days", seconds / 86_400);
    line(text, "workers", totals.workers);
}

fn clients(text: &mut String, cx: &mut Context<'_, '_>, totals: &Totals) {
    line(text, "connected_clients", totals.clients);
    line(text, "maxclients", cx.server.settings().clients);
    line(text, "blocked_clients", totals.held);
}

fn memory(text: &mut String, cx: &mut Context<'_, '_>, totals: &Totals) {
    let settings = cx.server.settings();
    line(text, "used_memory", totals.used);
    line(text, "used_memory_human", human(totals.used));
    line(text, "maxmemory", settings.memory);
    line(text, "maxmemory_human", human(settings.memory));
    line(text, "maxmemory_policy", policy_name(settings.evict));
}

fn persistence(text: &mut String, _: &mut Context<'_, '_>, _: &Totals) {
    line(text, "loading", 0);
    line(text, "rdb_bgsave_in_progress", 0);
    line(text, "aof_enabled", 0);
}

fn stats(text: &mut String, _: &mut Context<'_, '_>, totals: &Totals) {
    line(text, "total_connections_received", totals.accepted);
    line(text, "total_commands_processed", totals.stats.commands);
    line(text, "total_net_input_bytes", totals.input);
    line(text, "total_net_output_bytes", totals.output);
    line(text, "rejected_connections", totals.rejected);
    line(text, "expired_keys", totals.expired);
    line(text, "evicted_keys", totals.evicted);
    line(text, "evicted_clients", totals.evicted_clients);
    line(text, "keyspace_hits", totals.stats.hits);
    line(text, "keyspace_misses", totals.stats.misses);
    line(text, "total_error_replies", totals.stats.errors);
    line(text, "slow_requests", totals.stats.slow);
}

fn replication(text: &mut String, _: &mut Context<'_, '_>, _: &Totals) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
}

fn cpu(text: &mut String, _: &mut Context<'_, '_>, _: &Totals) {
    let CpuTime { user, system } = CpuTime::now();
    for (name, time) in [("used_cpu_sys", system), ("used_cpu_user", user)] {
        line(text, name, format_args!("{:.6}", time.as_secs_f64()));
    }
}

fn cluster(text: &mut String, cx: &mut Context<'_, '_>, _: &Totals) {
    line(text, "cluster_enabled", u8::from(cx.server.cluster().is_some()));
}

fn keyspace(text: &mut String, _: &mut Context<'_, '_>, totals: &Totals) {
    for (space, (keys, expires)) in totals.databases.iter().enumerate() {
        if *keys > 0 {
            // Remaining lifetimes are not tracked.
            line(text, &format!("db{space}"), format_args!("keys={keys},expires={expires},avg_ttl=0"));
        }
    }
}

/// Formats bytes with a binary unit, as Redis does.
fn human(bytes: u64) -> String {
    if bytes < 1 << 10 {
        return format!("{bytes}B");
    }
    let unit = (bytes.ilog2() / 10).min(5);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    format!("{value:.2}{}", ["B", "K", "M", "G", "T", "P"][unit as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::TestClient;

    #[test]
    fn info_has_sections() {
        for mut client in TestClient::each() {
            client.run("mset a 1 b 2 c 3");
            client.run("pexpire b 5000");
            client.run("select 4");
            client.run("set a 1");
            client.server.totals = Totals { clients: 3, ..Totals::default() };
            let all = client.run("info");
            for part in [
                "# Server redis_version:7.0.15 ",
                " tcp_port:6380 ",
                " # Clients connected_clients:3 ",
                "maxmemory_human:1.00G ",
                " # Keyspace db0:keys=3,expires=1,avg_ttl=0 db4:keys=1,expires=0,",
            ] {
                assert!(all.contains(part.trim()), "{part} in {all}");
            }
            let two = client.run("info KEYSPACE server");
            assert!(two.contains("# Server") && two.contains("# Keyspace") && !two.contains("# Memory"), "{two}");
            let cpu = client.run("info cpu");
            assert!(cpu.contains("# CPU used_cpu_sys:") && cpu.contains(" used_cpu_user:"), "{cpu}");
            client.expect("info nosuch", "$0");
        }
    }

    #[test]
    fn human_bytes_are_formatted_as_in_redis() {
        for (bytes, text) in
            [(0, "0B"), (1023, "1023B"), (1015720, "991.91K"), (1 << 30, "1.00G"), (1536 << 20, "1.50G")]
        {
            assert_eq!(human(bytes), text);
        }
    }
}
