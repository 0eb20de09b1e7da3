//! `BITOP`, which runs in steps if the result is long.

use super::{STEP, Snapshot};
use crate::commands::error::{BITOP_NOT, CommandError, CommandResult, SYNTAX};
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::Reply;
use crate::store::{Expiry, LONG_THRESHOLD, LongWriter, Str};

/// Result bytes computed together.
const BLOCK: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
}

/// `BITOP` that has computed part of a long result. The sources are snapshots taken at its start.
#[derive(Debug)]
pub struct BitOpTask {
    operation: Operation,
    /// Long sources, and the result of all short ones.
    sources: Vec<Snapshot>,
    len: usize,
    at: usize,
    result: LongWriter,
}

impl BitOpTask {
    /// Returns the memory of the task without long values.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + size_of_val(&self.sources[..]) + LONG_THRESHOLD
    }
}

impl Operation {
    fn parse(name: &[u8], sources: usize) -> Result<Self, CommandError> {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        match () {
            () if is("and") => Ok(Operation::And),
            () if is("or") => Ok(Operation::Or),
            () if is("xor") => Ok(Operation::Xor),
            () if is("not") && sources != 1 => Err(BITOP_NOT),
            () if is("not") => Ok(Operation::Not),
            () => Err(SYNTAX),
        }
    }

    /// Combines `out` with `other`, which is not longer. Zeros follow the end of `other`.
    fn combine(self, out: &mut [u8], other: &[u8]) {
        let (out, rest) = out.split_at_mut(other.len());
        let pairs = out.iter_mut().zip(other);
        match self {
            Operation::And => {
                pairs.for_each(|(byte, other)| *byte &= other);
                rest.fill(0);
            }
            Operation::Or => pairs.for_each(|(byte, other)| *byte |= other),
            Operation::Xor | Operation::Not => pairs.for_each(|(byte, other)| *byte ^= other),
        }
    }

    /// Computes the result from `at` on into `out`. Zeros follow the end of a source.
    fn compute(self, sources: &[Snapshot], at: usize, out: &mut [u8]) {
        out.fill(0);
        let (first, others) = match sources {
            [] => return,
            [first, others @ ..] => (first, others),
        };
        first.copy(at, out);
        let mut block = [0; BLOCK];
        for source in others {
            let count = source.copy(at, &mut block[..out.len()]);
            self.combine(out, &block[..count]);
        }
        if self == Operation::Not {
            out.iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

pub fn bitop(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut task = match cx.session.paused.take() {
        Some(Paused::BitOp(task)) => task,
        _ => match begin(cx, request, reply)? {
            Some(task) => task,
            None => return Ok(()),
        },
    };
    let mut left = if request.may_run_in_steps(cx.session) { STEP } else { usize::MAX };
    let target = cx.key(request, 2);
    let mut block = [0; BLOCK];
    while task.at < task.len {
        if task.result.room() == 0 {
            cx.shards.store(&target).extend_long(&mut task.result, cx.now)?;
        }
        let block = &mut block[..BLOCK.min(task.len - task.at).min(task.result.room())];
        task.operation.compute(&task.sources, task.at, block);
        task.at += task.result.fill(block);
        left = left.saturating_sub(block.len() * task.sources.len());
        if left == 0 && task.at < task.len {
            cx.session.paused = Some(Paused::BitOp(task));
            return Ok(());
        }
    }
    let BitOpTask { len, result, .. } = *task;
    cx.shards.store(&target).set(&target, result.finish(), Expiry::Never, cx.now)?;
    reply.count(len);
    Ok(())
}

/// Returns the task for a long result. Stores a short one and replies.
fn begin(
    cx: &mut Context<'_, '_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<Option<Box<BitOpTask>>, CommandError> {
    let operation = Operation::parse(&request.args[1], request.args.len() - 3)?;
    let target = cx.key(request, 2);
    let mut sources = Vec::new();
    // Result of the short sources so far. Copies of all of them would be up to a thousand times as long as the request.
    let mut short: Option<Vec<u8>> = None;
    for at in 3..request.args.len() {
        let key = cx.key(request, at);
        match (cx.shards.store(&key).peek(&key, cx.now)?.unwrap_or(Str::Short(b"")), &mut short) {
            (Str::Long(long), _) => sources.push(Snapshot::Long(long.clone())),
            (Str::Short(bytes), None) => short = Some(bytes.to_vec()),
            (Str::Short(bytes), Some(short)) => {
                short.resize(short.len().max(bytes.len()), 0);
                operation.combine(short, bytes);
            }
        }
    }
    sources.extend(short.map(Snapshot::Short));
    let len = sources.iter().map(Snapshot::len).max().unwrap_or(0);
    let store = cx.shards.store(&target);
    if len >= LONG_THRESHOLD {
        return Ok(Some(Box::new(BitOpTask { operation, sources, len, at: 0, result: LongWriter::new(len) })));
    }
    if len == 0 {
        store.remove(&target, cx.now);
    } else {
        let mut result = [0; BLOCK];
        let result = &mut result[..len];
        operation.compute(&sources, 0, result);
        store.set(&target, &*result, Expiry::Never, cx.now)?;
    }
    reply.count(len);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use crate::commands::testing::TestClient;

    #[test]
    fn short_sources_take_no_memory_each() {
        for mut client in TestClient::each() {
            client.session.allow_pausing();
            client.expect("setrange long 1100000 C", ":1100001");
            client.expect("setrange long 0 GGG", ":1100001");
            client.expect("set short AB", "+OK");
            client.expect("set shorter D", "+OK");
            let sources = format!("long shorter {}short", "short ".repeat(1000));
            for (operation, start, end) in [("and", "@\0\0", "\0"), ("or", "GGG", "C"), ("xor", "B\u{5}G", "C")] {
                let command = format!("bitop {operation} to {sources}");
                let mut reply = client.run(&command);
                assert!(client.session.is_paused() && client.session.memory() < 20_000);
                while client.session.is_paused() {
                    reply = client.run(&command);
                }
                assert_eq!(reply, ":1100001");
                client.expect("getrange to 0 2", &format!("$3 {start}"));
                client.expect("getrange to -1 -1", &format!("$1 {end}"));
            }
        }
    }
}
