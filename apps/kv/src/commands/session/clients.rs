//! `CLIENT` commands.

use crate::commands::error::{
    BAD_CLIENT_ID, CLIENT_ID, CommandError, CommandResult, NO_CLIENT, PAUSE_INTEGER, PAUSE_MODE, PAUSE_NEGATIVE, SYNTAX,
};
use crate::commands::options::integer;
use crate::commands::session::connection::check_name;
use crate::commands::session::{ClientInfo, Paused, Silence};
use crate::commands::{Context, PauseMode, Request};
use crate::resp::Reply;
use std::collections::HashMap;

pub fn id(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.integer(cx.session.id as i64);
    Ok(())
}

pub fn info(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut list = ClientList::new(vec![cx.session.client(cx.now)]);
    list.write(1);
    reply.verbatim(&list.text);
    Ok(())
}

/// Clients whose lines are written in one step of `CLIENT LIST`.
const STEP: usize = 256;

/// `CLIENT LIST` that has written some lines.
#[derive(Debug)]
pub struct ClientList {
    left: std::vec::IntoIter<ClientInfo>,
    text: Vec<u8>,
}

impl ClientList {
    fn new(clients: Vec<ClientInfo>) -> Box<Self> {
        Box::new(ClientList { left: clients.into_iter(), text: Vec::new() })
    }

    /// Writes up to `most` lines. Returns true if none is left.
    fn write(&mut self, most: usize) -> bool {
        for client in self.left.by_ref().take(most) {
            client.write(&mut self.text);
            self.text.push(b'\n');
        }
        self.left.len() == 0
    }

    pub fn memory(&self) -> usize {
        self.text.capacity() + self.left.as_slice().iter().map(ClientInfo::memory).sum::<usize>()
    }
}

pub fn list(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut list = match cx.session.paused.take() {
        Some(Paused::Clients(list)) => list,
        _ => ClientList::new(selected(cx, request)?),
    };
    if list.write(if request.may_run_in_steps(cx.session) { STEP } else { usize::MAX }) {
        reply.verbatim(&list.text);
    } else {
        cx.session.paused = Some(Paused::Clients(list));
    }
    Ok(())
}

/// Returns the clients that the options of `CLIENT LIST` select.
fn selected(cx: &mut Context<'_, '_>, request: &Request<'_>) -> Result<Vec<ClientInfo>, CommandError> {
    Ok(match request.args.get(2) {
        None => all(cx),
        Some(option) if option.eq_ignore_ascii_case(b"type") && request.args.len() == 4 => {
            if is_ordinary(&request.args[3])? { all(cx) } else { Vec::new() }
        }
        Some(option) if option.eq_ignore_ascii_case(b"id") && request.args.len() > 3 => {
            let mut clients: HashMap<u64, ClientInfo> = all(cx).into_iter().map(|client| (client.id, client)).collect();
            let mut listed = Vec::new();
            for id in request.args.iter().skip(3) {
                let id = integer(id).map_err(|_| BAD_CLIENT_ID)? as u64;
                // A repeated id adds nothing, so the reply is no longer than the list of all clients.
                listed.extend(clients.remove(&id));
            }
            listed
        }
        Some(_) => return Err(SYNTAX),
    })
}

/// Returns all connections, with the current state of the calling one.
fn all(cx: &mut Context<'_, '_>) -> Vec<ClientInfo> {
    let mut clients = cx.server.clients();
    let this = cx.session.client(cx.now);
    match clients.iter_mut().find(|client| client.id == this.id) {
        Some(client) => *client = this,
        None => clients.push(this),
    }
    clients.sort_by_key(|client| client.id);
    clients
}

/// Returns true if `name` is the type of ordinary clients. There are no clients of the other types.
fn is_ordinary(name: &[u8]) -> Result<bool, CommandError> {
    match &name.to_ascii_lowercase()[..] {
        b"normal" => Ok(true),
        b"slave" | b"replica" | b"pubsub" | b"master" => Ok(false),
        _ => Err(CommandError::concat(&[b"ERR Unknown client type '", name, b"'"])),
    }
}

pub fn setname(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let name = &request.args[2];
    check_name(b"Client names", name)?;
    cx.session.name = name.to_vec();
    reply.ok();
    Ok(())
}

pub fn getname(cx: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    match &cx.session.name[..] {
        [] => reply.null(),
        name => reply.bulk(name),
    }
    Ok(())
}

/// `CLIENT SETINFO`, which Redis has since 7.2.
pub fn setinfo(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (option, value) = (&request.args[2], &request.args[3]);
    let kept = match &option.to_ascii_lowercase()[..] {
        b"lib-name" => &mut cx.session.library,
        b"lib-ver" => &mut cx.session.library_version,
        _ => return Err(CommandError::concat(&[b"ERR Unrecognized option '", option, b"'"])),
    };
    check_name(option, value)?;
    *kept = value.to_vec();
    reply.ok();
    Ok(())
}

/// Filter of `CLIENT KILL`.
#[derive(Default)]
struct Filter<'a> {
    id: Option<u64>,
    peer: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    is_none: bool,
    spares_this: bool,
}

impl<'a> Filter<'a> {
    fn parse(request: &Request<'a>) -> Result<Self, CommandError> {
        let args = request.args;
        if args.len() == 3 {
            return Ok(Filter { peer: Some(args.at(2)), ..Filter::default() });
        }
        let mut filter = Filter { spares_this: true, ..Filter::default() };
        let mut rest = args.iter().skip(2);
        while let Some(option) = rest.next() {
            let value = rest.next().ok_or(SYNTAX)?;
            match &option.to_ascii_lowercase()[..] {
                b"id" => filter.id = Some(integer(value).ok().filter(|id| *id > 0).ok_or(CLIENT_ID)? as u64),
                b"addr" => filter.peer = Some(value),
                b"laddr" => filter.local = Some(value),
                b"type" => filter.is_none |= !is_ordinary(value)?,
                b"user" if value == b"default" => {}
                b"user" => return Err(CommandError::concat(&[b"ERR No such user '", value, b"'"])),
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.spares_this = true,
                b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.spares_this = false,
                _ => return Err(SYNTAX),
            }
        }
        Ok(filter)
    }

    fn takes(&self, client: &ClientInfo) -> bool {
        let is =
            |text: Option<&[u8]>, of: &dyn std::fmt::Display| text.is_none_or(|text| of.to_string().as_bytes() == text);
        !self.is_none
            && self.id.is_none_or(|id| id == client.id)
            && is(self.peer, &client.peer)
            && is(self.local, &client.local)
    }
}

/// Answers `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`, which have no effect: every client counts for the limit of the
/// memory of clients, and reads always count as uses.
pub fn set_switch(_: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mode = &request.args[2];
    if !mode.eq_ignore_ascii_case(b"on") && !mode.eq_ignore_ascii_case(b"off") {
        return Err(SYNTAX);
    }
    reply.ok();
    Ok(())
}

/// `CLIENT REPLY`. The caller removes the replies of silent requests.
pub fn reply(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    match &request.args[2].to_ascii_lowercase()[..] {
        b"on" => {
            (cx.session.silence, cx.session.is_silent) = (Silence::Off, false);
            reply.ok();
        }
        b"off" => (cx.session.silence, cx.session.is_silent) = (Silence::On, true),
        b"skip" => {
            cx.session.is_silent = true;
            if cx.session.silence == Silence::Off {
                cx.session.silence = Silence::Next;
            }
        }
        _ => return Err(SYNTAX),
    }
    Ok(())
}

pub fn pause(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    change_pause(cx, request, reply, |cx| {
        let mode = match request.args.get(3) {
            None => PauseMode::All,
            Some(_) if request.args.len() > 4 => return Err(SYNTAX),
            Some(mode) if mode.eq_ignore_ascii_case(b"all") => PauseMode::All,
            Some(mode) if mode.eq_ignore_ascii_case(b"write") => PauseMode::Write,
            Some(_) => return Err(PAUSE_MODE),
        };
        let millis = integer(&request.args[2]).map_err(|_| PAUSE_INTEGER)?;
        let millis = u64::try_from(millis).map_err(|_| PAUSE_NEGATIVE)?;
        Ok(cx.server.pause(mode, cx.now, cx.now.saturating_add(millis)))
    })
}

pub fn unpause(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    change_pause(cx, request, reply, |cx| Ok(cx.server.unpause()))
}

/// Calls `change`, which returns the version of the pause, and replies once all workers obey it. A transaction cannot
/// wait for them.
fn change_pause<'a, 's>(
    cx: &mut Context<'a, 's>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    change: impl FnOnce(&mut Context<'a, 's>) -> Result<u64, CommandError>,
) -> CommandResult {
    let version = match cx.session.paused.take() {
        Some(Paused::Pause(version)) => version,
        _ => change(cx)?,
    };
    if request.may_run_in_steps(cx.session) && !cx.server.is_pause_obeyed(version) {
        cx.session.paused = Some(Paused::Pause(version));
        return Ok(());
    }
    reply.ok();
    Ok(())
}

pub fn kill(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let filter = Filter::parse(request)?;
    let mut killed = 0;
    for client in all(cx).iter().filter(|client| filter.takes(client)) {
        if client.id != cx.session.id {
            cx.server.kill(client.id);
        } else if filter.spares_this {
            continue;
        } else {
            cx.session.is_closing = true;
        }
        killed += 1;
    }
    match (request.args.len(), killed) {
        (3, 0) => return Err(NO_CLIENT),
        (3, _) => reply.ok(),
        _ => reply.count(killed),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::commands::PauseMode;
    use crate::commands::testing::{START, TestClient};

    #[test]
    fn client_has_name_and_library() {
        for mut client in TestClient::each() {
            client.expect("client id", ":7");
            client.expect("client getname", "$-1");
            client.expect("client setname me", "+OK");
            client.expect("client getname", "$2 me");
            client.expect(
                "client setname \"a b\"",
                "-ERR Client names cannot contain spaces, newlines or special characters.",
            );
            client.expect("client setinfo LIB-NAME redis-py", "+OK");
            client.expect("client setinfo lib-ver 5.0", "+OK");
            client.expect("client setinfo x y", "-ERR Unrecognized option 'x'");
            client.expect(
                "client setinfo lib-ver \"a b\"",
                "-ERR lib-ver cannot contain spaces, newlines or special characters.",
            );
            let info = client.run("client info");
            assert!(info.contains("id=7 addr=192.0.2.1:1000 laddr=192.0.2.9:6380 fd=0 name=me age=0 idle=0"), "{info}");
            assert!(
                info.ends_with("cmd=client|info user=default redir=-1 resp=2 lib-name=redis-py lib-ver=5.0\n"),
                "{info}"
            );
            let [longest, longer] = [256, 257].map(|len| "n".repeat(len));
            for (command, what) in
                [("setname", "Client names"), ("setinfo lib-name", "lib-name"), ("setinfo lib-ver", "lib-ver")]
            {
                client.expect(&format!("client {command} {longest}"), "+OK");
                let error = format!("-ERR {what} cannot be longer than 256 bytes.");
                client.expect(&format!("client {command} {longer}"), &error);
            }
            client.expect(&format!("hello 2 setname {longer}"), "-ERR Client names cannot be longer than 256 bytes.");
            client.expect("client getname", &format!("$256 {longest}"));
            client.expect("client setname \"\"", "+OK");
            client.expect("client getname", "$-1");
            client.expect("client foo", "-ERR unknown subcommand 'foo'. Try CLIENT HELP.");
        }
    }

    #[test]
    fn client_pause_has_mode_and_end() {
        for mut client in TestClient::each() {
            client.expect("client pause 100", "+OK");
            client.expect("client pause 0 WRITE", "+OK");
            client.expect("client pause 9223372036854775807 all", "+OK");
            client.expect("client unpause", "+OK");
            let end = START + i64::MAX as u64;
            let (all, write) = (PauseMode::All, PauseMode::Write);
            assert_eq!(client.server.pauses, [Some((all, START + 100)), Some((write, START)), Some((all, end)), None]);
            client.expect("client pause 1 all all", "-ERR syntax error");
        }
    }

    #[test]
    fn client_list_and_kill_cover_other_clients() {
        for mut client in TestClient::each() {
            let list = client.run("client list");
            assert!(list.contains("\nid=8 ") && list.contains(" cmd=client|list "), "{list}");
            assert!(!client.run("client list id 8 99").contains("id=7"));
            client.expect("client kill id 8", ":1");
            client.expect("client kill addr 192.0.2.1:1001 skipme no", ":1");
            client.expect("client kill 192.0.2.1:1001", "+OK");
            assert_eq!(client.server.killed, [8, 8, 8]);
            client.expect("client kill nosuch", "-ERR No such client");
            client.expect("client kill id 7", ":0");
            client.expect("client kill type pubsub", ":0");
            assert!(!client.session.is_closing());
            client.expect("client kill laddr 192.0.2.9:6380 skipme no", ":2");
            assert!(client.session.is_closing());
        }
    }
}
