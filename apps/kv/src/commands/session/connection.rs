//! Connection commands.

use crate::commands::data::keys;
use crate::commands::error::{
    CommandError, CommandResult, DATABASE, NO_AUTH_FOR_HELLO, NO_PASSWORD, NO_PROTOCOL, PROTOCOL_NUMBER,
    SELECT_IN_CLUSTER, SYNTAX, WRONG_PASSWORD,
};
use crate::commands::options::integer;
use crate::commands::session::Silence;
use crate::commands::{Context, Request};
use crate::resp::{Protocol, Reply};

/// Version of Redis reported to clients, whose commands are implemented.
pub(in crate::commands) const VERSION: &str = "7.0.15";

/// Limit of a client's name, and of the name and version of its library, in bytes.
const MAX_NAME: usize = 256;

pub fn ping(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    match request.args.get(1) {
        None => reply.simple("PONG"),
        Some(text) if request.args.len() == 2 => reply.bulk(text),
        Some(_) => return Err(request.arity()),
    }
    Ok(())
}

pub fn echo(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.bulk(&request.args[1]);
    Ok(())
}

pub fn quit(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.session.is_closing = true;
    reply.ok();
    Ok(())
}

pub fn reset(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.session.unwatch(cx.shards);
    let session = &mut *cx.session;
    session.transaction = None;
    session.space = 0;
    session.protocol = Protocol::Resp2;
    session.name.clear();
    (session.silence, session.is_silent) = (Silence::Off, false);
    session.is_authenticated = cx.server.settings().password.is_none();
    reply.protocol = Protocol::Resp2;
    reply.simple("RESET");
    Ok(())
}

pub fn select(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let number = &request.args[1];
    cx.session.space = match keys::database(number) {
        Err(no_database) if cx.server.cluster().is_none() || no_database != DATABASE => return Err(no_database),
        Ok(space) if cx.server.cluster().is_none() || space == 0 => space,
        _ => return Err(SELECT_IN_CLUSTER),
    };
    reply.ok();
    Ok(())
}

/// Returns the keyspace that `SELECT` changes to, if the number is valid.
pub fn selected(number: &[u8]) -> Option<u8> {
    keys::database(number).ok()
}

pub fn auth(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (user, password) = match request.args.len() {
        2 if cx.server.settings().password.is_none() => return Err(NO_PASSWORD),
        2 => (&b"default"[..], &request.args[1]),
        3 => (&request.args[1], &request.args[2]),
        _ => return Err(SYNTAX),
    };
    authenticate(cx, user, password)?;
    reply.ok();
    Ok(())
}

fn authenticate(cx: &mut Context<'_, '_>, user: &[u8], password: &[u8]) -> CommandResult {
    let is_right = cx.server.settings().password.as_deref().is_none_or(|right| is_same(right, password));
    if user != b"default" || !is_right {
        return Err(WRONG_PASSWORD);
    }
    cx.session.is_authenticated = true;
    Ok(())
}

/// Compares two passwords in a time that does not depend on the position of a difference.
fn is_same(right: &[u8], word: &[u8]) -> bool {
    let differing = right.iter().zip(word).fold(0, |differing, (a, b)| differing | (a ^ b));
    right.len() == word.len() && std::hint::black_box(differing) == 0
}

pub fn hello(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let protocol = match request.args.get(1) {
        None => cx.session.protocol,
        Some(version) => match integer(version).map_err(|_| PROTOCOL_NUMBER)? {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(NO_PROTOCOL),
        },
    };
    let (mut user, mut name) = (None, None);
    let mut rest = request.args.iter().skip(2);
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"auth") && rest.len() >= 2 {
            user = rest.next().zip(rest.next());
        } else if option.eq_ignore_ascii_case(b"setname") && rest.len() >= 1 {
            name = rest.next();
            check_name(b"Client names", name.unwrap_or_default())?;
        } else {
            return Err(CommandError::hello_option(option));
        }
    }
    if let Some((user, password)) = user {
        authenticate(cx, user, password)?;
    }
    if !cx.session.is_authenticated {
        return Err(NO_AUTH_FOR_HELLO);
    }
    if let Some(name) = name {
        cx.session.name = name.to_vec();
    }
    cx.session.protocol = protocol;
    reply.protocol = protocol;
    reply.map(7);
    reply.bulks(["server", "redis", "version", VERSION, "proto"]);
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(cx.session.id as i64);
    let mode = if cx.server.cluster().is_some() { "cluster" } else { "standalone" };
    reply.bulks(["mode", mode, "role", "master", "modules"]);
    reply.array(0);
    Ok(())
}

/// Rejects names and properties of clients that are too long or have spaces or control characters, which would corrupt
/// `CLIENT LIST`. `what` begins the error.
pub fn check_name(what: &[u8], name: &[u8]) -> CommandResult {
    if name.len() > MAX_NAME {
        return Err(CommandError::concat(&[
            b"ERR ",
            what,
            format!(" cannot be longer than {MAX_NAME} bytes.").as_bytes(),
        ]));
    }
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err(CommandError::concat(&[b"ERR ", what, b" cannot contain spaces, newlines or special characters."]));
    }
    Ok(())
}
