//! Commands of Redis Cluster.

mod keys_in_slot;
mod redirection;

pub use keys_in_slot::{SlotProgress, count_keys_in_slot, get_keys_in_slot};
pub use redirection::{moved, redirection};

use crate::cluster::{ClusterMap, Node, SLOTS, key_slot};
use crate::commands::error::{CommandResult, NO_CLUSTER};
use crate::commands::{Context, Request, Session};
use crate::resp::Reply;
use std::fmt::Write;

/// Returns the address of `node` without the port.
fn host_of(node: &Node, session: &Session) -> String {
    node.host.clone().unwrap_or_else(|| session.local.ip().to_string())
}

/// Calls `act` with the map of the cluster, the index of the node that answers, and the session of the client.
fn with_map(
    cx: &mut Context<'_, '_>,
    reply: &mut Reply<'_>,
    act: impl FnOnce(&ClusterMap, usize, &Session, &mut Reply<'_>),
) -> CommandResult {
    let (map, worker) = cx.server.cluster().ok_or(NO_CLUSTER)?;
    act(map, map.own(worker), cx.session, reply);
    Ok(())
}

/// Answers `READONLY`, `READWRITE` and `ASKING`: there are no replicas and no migrations.
pub fn change_nothing(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |_, _, _, reply| reply.ok())
}

pub fn my_id(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |map, own, _, reply| reply.bulk(map.id(own).as_bytes()))
}

pub fn my_shard_id(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |map, own, _, reply| reply.bulk(map.shard_id(own).as_bytes()))
}

/// Replies that there are no connections between nodes.
pub fn links(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |_, _, _, reply| reply.array(0))
}

pub fn keyslot(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |_, _, _, reply| reply.integer(key_slot(&request.args[2]).into()))
}

pub fn slots(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |map, _, session, reply| {
        reply.array(map.ranges().count());
        for (range, index) in map.ranges() {
            let node = &map.nodes()[index];
            reply.array(3);
            reply.integer((*range.start()).into());
            reply.integer((*range.end()).into());
            reply.array(4);
            reply.bulk(host_of(node, session).as_bytes());
            reply.integer(node.port_for(session.is_tls).into());
            reply.bulk(map.id(index).as_bytes());
            // No further metadata.
            reply.map(0);
        }
    })
}

pub fn shards(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |map, _, session, reply| {
        reply.array(map.nodes().len());
        for (index, node) in map.nodes().iter().enumerate() {
            reply.map(2);
            reply.bulk(b"slots");
            reply.array(2 * node.slots.len());
            for end in node.slots.iter().flat_map(|range| [*range.start(), *range.end()]) {
                reply.integer(end.into());
            }
            reply.bulk(b"nodes");
            reply.array(1);
            let host = host_of(node, session);
            let ports = [(&b"port"[..], node.port), (b"tls-port", node.tls_port)];
            let ports = ports.into_iter().filter(|(_, port)| *port != 0);
            reply.map(6 + ports.clone().count());
            reply.bulk(b"id");
            reply.bulk(map.id(index).as_bytes());
            for (name, port) in ports {
                reply.bulk(name);
                reply.integer(port.into());
            }
            for name in [b"ip".as_slice(), b"endpoint"] {
                reply.bulk(name);
                reply.bulk(host.as_bytes());
            }
            reply.bulk(b"role");
            reply.bulk(b"master");
            reply.bulk(b"replication-offset");
            reply.integer(0);
            reply.bulk(b"health");
            reply.bulk(b"online");
        }
    })
}

pub fn nodes(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |map, myself, session, reply| {
        let mut text = String::new();
        for (index, node) in map.nodes().iter().enumerate() {
            let flags = if index == myself { "myself,master" } else { "master" };
            let (id, address, epoch) = (map.id(index), session.address_of(node), index + 1);
            // Writing to a `String` cannot fail. There is no cluster bus, hence port 0.
            let _ = write!(text, "{id} {address}@0 {flags} - 0 0 {epoch} connected");
            for range in &node.slots {
                let _ = match (range.start(), range.end()) {
                    (start, end) if start == end => write!(text, " {start}"),
                    (start, end) => write!(text, " {start}-{end}"),
                };
            }
            text.push('\n');
        }
        reply.verbatim(text.as_bytes());
    })
}

pub fn info(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    with_map(cx, reply, |map, own, _, reply| {
        let nodes = map.nodes();
        let masters = nodes.iter().filter(|node| !node.slots.is_empty()).count();
        let lines = [
            ("cluster_slots_assigned", SLOTS),
            ("cluster_slots_ok", SLOTS),
            ("cluster_slots_pfail", 0),
            ("cluster_slots_fail", 0),
            ("cluster_known_nodes", nodes.len()),
            ("cluster_size", masters),
            ("cluster_current_epoch", nodes.len()),
            ("cluster_my_epoch", own + 1),
            ("cluster_stats_messages_sent", 0),
            ("cluster_stats_messages_received", 0),
            ("total_cluster_links_buffer_limit_exceeded", 0),
        ];
        let mut text = "cluster_state:ok\r\n".to_owned();
        lines.iter().for_each(|(name, value)| text += &format!("{name}:{value}\r\n"));
        reply.verbatim(text.as_bytes());
    })
}
