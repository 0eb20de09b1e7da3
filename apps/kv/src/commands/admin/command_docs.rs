//! `COMMAND`: the command table for clients.

use crate::commands::error::CommandResult;
use crate::commands::table::{COMMANDS, Command, Flags, by_full_name};
use crate::commands::{Context, Request};
use crate::resp::Reply;

const FLAGS: [(u32, &str); 11] = [
    (Flags::WRITE, "write"),
    (Flags::READ, "readonly"),
    (Flags::DENY_OOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::NO_SCRIPT, "noscript"),
    (Flags::LOADING, "loading"),
    (Flags::STALE, "stale"),
    (Flags::SKIP_SLOWLOG, "skip_slowlog"),
    (Flags::FAST, "fast"),
    (Flags::NO_AUTH, "no_auth"),
    (Flags::ALLOW_BUSY, "allow_busy"),
];

/// ACL categories, with the flags that put a command into them.
const CATEGORIES: [(u32, &str); 12] = [
    (Flags::SCRIPTING, "@scripting"),
    (Flags::BITMAP, "@bitmap"),
    (Flags::KEYSPACE, "@keyspace"),
    (Flags::READ, "@read"),
    (Flags::WRITE, "@write"),
    (Flags::HASH, "@hash"),
    (Flags::STRING, "@string"),
    (Flags::ADMIN, "@admin"),
    (Flags::FAST, "@fast"),
    (Flags::DANGEROUS | Flags::ADMIN, "@dangerous"),
    (Flags::CONNECTION, "@connection"),
    (Flags::TRANSACTION, "@transaction"),
];

pub fn command(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.array(COMMANDS.len());
    COMMANDS.iter().for_each(|command| describe(command, reply));
    Ok(())
}

pub fn count(_: &mut Context<'_, '_>, _: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    reply.count(COMMANDS.len());
    Ok(())
}

pub fn info(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    if request.args.len() == 2 {
        return command(cx, request, reply);
    }
    reply.array(request.args.len() - 2);
    for name in request.args.iter().skip(2) {
        match by_full_name(name) {
            Some(command) => describe(command, reply),
            None => reply.null(),
        }
    }
    Ok(())
}

fn describe(command: &Command, reply: &mut Reply<'_>) {
    let has = |flags: u32| command.flags.has(flags);
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(command.arity.into());
    names(FLAGS.iter().filter(|(flag, _)| has(*flag)).map(|(_, name)| *name), reply);
    reply.integer(command.first.into());
    reply.integer(command.last.into());
    reply.integer(command.step.into());
    let mut categories: Vec<&str> = CATEGORIES.iter().filter(|(flag, _)| has(*flag)).map(|(_, name)| *name).collect();
    if !has(Flags::FAST) {
        categories.push("@slow");
    }
    names(categories.into_iter(), reply);
    // No tips, which only cluster clients use.
    reply.array(0);
    let specs: Vec<&str> = command.access.split(',').filter(|access| !access.is_empty()).collect();
    reply.array(specs.len());
    for (at, access) in specs.iter().enumerate() {
        describe_keys(command, at, specs.len(), access, reply);
    }
    reply.array(command.subcommands.len());
    command.subcommands.iter().for_each(|part| describe(part, reply));
}

fn describe_keys(command: &Command, at: usize, of: usize, access: &str, reply: &mut Reply<'_>) {
    reply.map(3);
    reply.bulk(b"flags");
    names(access.split(' '), reply);
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulks(["type", "index", "spec"]);
    reply.map(1);
    reply.bulk(b"index");
    reply.count(usize::from(command.first) + at);
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulks(["type", "range", "spec"]);
    reply.map(3);
    reply.bulk(b"lastkey");
    // Relative to the first key, unless it counts from the end.
    let last = i64::from(command.last);
    reply.integer(if of > at + 1 {
        0
    } else if last < 0 {
        last
    } else if of > 1 {
        0
    } else {
        last - i64::from(command.first)
    });
    reply.bulk(b"keystep");
    reply.integer(command.step.into());
    reply.bulk(b"limit");
    reply.integer(0);
}

fn names<'a>(names: impl Iterator<Item = &'a str> + Clone, reply: &mut Reply<'_>) {
    reply.set(names.clone().count());
    names.for_each(|name| reply.simple(name));
}
