//! `LCS`: longest common subsequence of two strings.

use crate::commands::data::bits::Snapshot;
use crate::commands::error::{CommandError, CommandResult, LCS_BOTH, LCS_MEMORY, LCS_TYPE, SYNTAX};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::{Args, Reply};

/// Cells of the table computed per step, and bytes copied or compared: less than two milliseconds.
const STEP: usize = 1 << 20;
/// Bytes per table cell in Redis, which limits the table to `proto-max-bulk-len` bytes.
const CELL: u64 = 4;

/// Search for a longest common subsequence that has run in part.
#[derive(Debug)]
pub struct LcsTask {
    sources: [Snapshot; 2],
    options: Options,
    /// Copies of the strings.
    strings: [Vec<u8>; 2],
    /// Lengths of the longest common subsequences of the processed prefix of the first string and each prefix of the
    /// second.
    lens: Vec<u32>,
    /// Number of complete rows, one for each byte of the first string, and of complete cells in the next row.
    row: usize,
    column: usize,
    /// Length of the cell to the upper left of the next one.
    diagonal: u32,
    /// One bit for each cell: set if the length in the cell above exceeds the length in the cell to the left.
    directions: Vec<u64>,
    walk: Option<Walk>,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    wants_len: bool,
    wants_ranges: bool,
    with_match_len: bool,
    min_match_len: u64,
}

/// Traceback through the table.
#[derive(Debug)]
struct Walk {
    /// Lengths of the remaining prefixes of both strings.
    at: [usize; 2],
    /// Bytes of the subsequence, from the end.
    found: Vec<u8>,
    /// Start in both strings and length of the current match.
    current: Option<Match>,
    matches: Vec<Match>,
}

#[derive(Debug, Clone, Copy)]
struct Match {
    starts: [usize; 2],
    len: usize,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        let mut options = Options { wants_len: false, wants_ranges: false, with_match_len: false, min_match_len: 0 };
        let mut at = 3;
        while let Some(option) = args.get(at) {
            let is = |other: &str| option.eq_ignore_ascii_case(other.as_bytes());
            match () {
                () if is("idx") => options.wants_ranges = true,
                () if is("len") => options.wants_len = true,
                () if is("withmatchlen") => options.with_match_len = true,
                () if is("minmatchlen") && at + 1 < args.len() => {
                    at += 1;
                    options.min_match_len = u64::try_from(integer(&args[at])?).unwrap_or(0);
                }
                () => return Err(SYNTAX),
            }
            at += 1;
        }
        if options.wants_len && options.wants_ranges { Err(LCS_BOTH) } else { Ok(options) }
    }
}

impl LcsTask {
    fn new(sources: [Snapshot; 2], options: Options) -> Self {
        let [rows, columns] = [0, 1].map(|at: usize| sources[at].len());
        let cells = if options.wants_len { 0 } else { rows * columns };
        LcsTask {
            sources,
            options,
            strings: [Vec::new(), Vec::new()],
            lens: vec![0; columns + 1],
            row: 0,
            column: 0,
            diagonal: 0,
            directions: vec![0; cells.div_ceil(64)],
            walk: None,
        }
    }

    /// Does work of about `left` cells. Returns true at the end.
    fn step(&mut self, mut left: usize) -> bool {
        self.copy(&mut left) && self.fill_table(&mut left) && (self.options.wants_len || self.walk_back(&mut left))
    }

    /// Copies the strings, whose bytes may be in several pieces. Returns true at the end.
    fn copy(&mut self, left: &mut usize) -> bool {
        for (source, string) in self.sources.iter().zip(&mut self.strings) {
            string.reserve_exact(source.len() - string.len());
            while string.len() < source.len() {
                let bytes = source.from(string.len());
                let count = bytes.len().min(*left);
                if count == 0 {
                    return false;
                }
                string.extend_from_slice(&bytes[..count]);
                *left -= count;
            }
        }
        true
    }

    fn fill_table(&mut self, left: &mut usize) -> bool {
        let [rows, columns] = &self.strings;
        while self.row < rows.len() {
            if *left == 0 {
                return false;
            }
            let byte = rows[self.row];
            let end = columns.len().min(self.column + *left);
            let (mut diagonal, first) = (self.diagonal, self.column);
            for at in first..end {
                let (up, before) = (self.lens[at + 1], self.lens[at]);
                let is_up = up > before;
                self.lens[at + 1] = if columns[at] == byte { diagonal + 1 } else { up.max(before) };
                diagonal = up;
                if !self.directions.is_empty() && is_up {
                    let cell = self.row * columns.len() + at;
                    self.directions[cell / 64] |= 1 << (cell % 64);
                }
            }
            *left = left.saturating_sub((end - first).max(1));
            (self.column, self.diagonal) = (end, diagonal);
            if end == columns.len() {
                (self.row, self.column, self.diagonal) = (self.row + 1, 0, 0);
            }
        }
        true
    }

    fn len(&self) -> usize {
        self.lens.last().map_or(0, |len| *len as usize)
    }

    fn walk_back(&mut self, left: &mut usize) -> bool {
        let [rows, columns] = &self.strings;
        let walk = self.walk.get_or_insert_with(|| Walk {
            at: [rows.len(), columns.len()],
            found: Vec::new(),
            current: None,
            matches: Vec::new(),
        });
        loop {
            let [row, column] = walk.at;
            if row == 0 || column == 0 {
                return true;
            }
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let mut is_over = false;
            if rows[row - 1] == columns[column - 1] {
                walk.found.push(rows[row - 1]);
                walk.current = Some(match walk.current {
                    Some(Match { len, .. }) => Match { starts: [row - 1, column - 1], len: len + 1 },
                    None => Match { starts: [row - 1, column - 1], len: 1 },
                });
                is_over = row == 1 || column == 1;
                walk.at = [row - 1, column - 1];
            } else {
                let cell = (row - 1) * columns.len() + column - 1;
                let is_up = self.directions[cell / 64] >> (cell % 64) & 1 == 1;
                walk.at = if is_up { [row - 1, column] } else { [row, column - 1] };
                is_over |= walk.current.is_some();
            }
            if is_over && let Some(found) = walk.current.take() {
                let is_long = found.len as u64 >= self.options.min_match_len;
                walk.matches.extend(Some(found).filter(|_| is_long && self.options.wants_ranges));
            }
        }
    }

    fn reply(&self, reply: &mut Reply<'_>) {
        let empty = Vec::new();
        if self.options.wants_ranges {
            reply.map(2);
            reply.bulk(b"matches");
            let matches = self.walk.as_ref().map_or(&[][..], |walk| &walk.matches);
            reply.array(matches.len());
            for Match { starts, len } in matches {
                reply.array(2 + usize::from(self.options.with_match_len));
                for start in starts {
                    reply.array(2);
                    reply.count(*start);
                    reply.count(start + len - 1);
                }
                if self.options.with_match_len {
                    reply.count(*len);
                }
            }
            reply.bulk(b"len");
            reply.count(self.len());
        } else if self.options.wants_len {
            reply.count(self.len());
        } else {
            let found = self.walk.as_ref().map_or(&empty, |walk| &walk.found);
            reply.bulk(&found.iter().rev().copied().collect::<Vec<_>>());
        }
    }
}

pub fn lcs(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut task = match cx.session.paused.take() {
        Some(Paused::Lcs(task)) => task,
        _ => begin(cx, request)?,
    };
    let most = if request.may_run_in_steps(cx.session) { STEP } else { usize::MAX };
    if task.step(most) {
        task.reply(reply);
    } else {
        cx.session.paused = Some(Paused::Lcs(task));
    }
    Ok(())
}

fn begin(cx: &mut Context<'_, '_>, request: &Request<'_>) -> Result<Box<LcsTask>, CommandError> {
    let mut sources = [1, 2].map(|_| Snapshot::Short(Vec::new()));
    for (at, source) in (1..).zip(&mut sources) {
        let key = cx.key(request, at);
        let value = cx.shards.of(&key).get(&key, cx.now).map_err(|_| LCS_TYPE)?;
        let is_there = value.is_some();
        *source = Snapshot::of(value);
        cx.count_lookup(is_there);
    }
    let options = Options::parse(request.args)?;
    let [rows, columns] = [0, 1].map(|at: usize| sources[at].len() as u64 + 1);
    if rows.saturating_mul(columns).saturating_mul(CELL) > cx.server.settings().bulk {
        return Err(LCS_MEMORY);
    }
    Ok(Box::new(LcsTask::new(sources, options)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length of a longest common subsequence by the definition.
    fn longest(a: &[u8], b: &[u8]) -> usize {
        match (a, b) {
            ([a @ .., x], [b @ .., y]) if x == y => longest(a, b) + 1,
            ([a_front @ .., _], [b_front @ .., _]) => longest(a_front, b).max(longest(a, b_front)),
            _ => 0,
        }
    }

    #[test]
    fn steps_of_any_size_find_a_longest_common_subsequence() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let strings = [(); 2].map(|()| (0..random.usize(..9)).map(|_| random.u8(b'a'..b'd')).collect::<Vec<u8>>());
            let expected = longest(&strings[0], &strings[1]);
            let options = Options { wants_len: false, wants_ranges: true, with_match_len: true, min_match_len: 0 };
            let run = |most: usize| {
                let mut task = LcsTask::new(strings.clone().map(Snapshot::Short), options);
                let steps = (0..1000).find(|_| task.step(most));
                assert!(steps.is_some());
                let mut out = Vec::new();
                task.reply(&mut Reply::new(&mut out, crate::resp::Protocol::Resp2));
                (task, out)
            };
            let (task, out) = run(usize::MAX);
            let walk = task.walk.as_ref().unwrap();
            assert_eq!((task.len(), walk.found.len()), (expected, expected));
            for string in &strings {
                let mut rest = string.iter();
                assert!(walk.found.iter().rev().all(|byte| rest.any(|other| other == byte)));
            }
            assert_eq!(walk.matches.iter().map(|found| found.len).sum::<usize>(), expected);
            assert_eq!(run(random.usize(1..7)).1, out);
        }
    }
}
