//! What several commands' arguments have in common.

use crate::commands::error::{NO_INT, NO_INTEGER, Refused, SYNTAX};
use crate::resp::{Args, number};
use crate::store::Expiry;

/// The latest time that a store knows, in the year 10889: what expires later expires then.
const LATEST: u64 = (1 << 48) - 1;

/// A number of 64 bits.
pub(super) fn integer(arg: &[u8]) -> Result<i64, Refused> {
    number::parse(arg).ok_or(NO_INTEGER)
}

/// A number of 32 bits.
pub(super) fn int(arg: &[u8]) -> Result<i32, Refused> {
    integer(arg)?.try_into().map_err(|_| NO_INT)
}

/// In which way a time is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// In seconds, not milliseconds.
    pub seconds: bool,
    /// From now on, not since 1970.
    pub relative: bool,
}

impl Unit {
    pub const EX: Unit = Unit { seconds: true, relative: true };
    pub const PX: Unit = Unit { seconds: false, relative: true };
    pub const EXAT: Unit = Unit { seconds: true, relative: false };
    pub const PXAT: Unit = Unit { seconds: false, relative: false };

    /// `time` as milliseconds since 1970, if they can be counted.
    pub fn to_millis(self, time: i64, now: u64) -> Option<i64> {
        let millis = if self.seconds { time.checked_mul(1000)? } else { time };
        if self.relative { millis.checked_add(now as i64) } else { Some(millis) }
    }
}

/// What expires at `millis`, which is no time before 1970.
pub(super) fn expiry(millis: i64) -> u64 {
    (millis as u64).min(LATEST)
}

/// The options of `SET` and `GETEX`.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Options<'a> {
    pub if_new: bool,
    pub if_there: bool,
    pub get: bool,
    pub keep: bool,
    pub persist: bool,
    pub time: Option<(Unit, &'a [u8])>,
}

/// Which command has options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Set,
    Getex,
}

impl<'a> Options<'a> {
    /// Those from the argument `from` on.
    pub fn parse(args: Args<'a>, from: usize, of: Of) -> Result<Self, Refused> {
        let mut options = Options::default();
        let mut at = from;
        while let Some(option) = args.get(at) {
            at += options.add(option, args.get(at + 1), of)?;
        }
        Ok(options)
    }

    /// Takes note of `option`. Returns how many arguments it is.
    fn add(&mut self, option: &'a [u8], next: Option<&'a [u8]>, of: Of) -> Result<usize, Refused> {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let is_set = of == Of::Set;
        if is_set && is("nx") && !self.if_there {
            self.if_new = true;
        } else if is_set && is("xx") && !self.if_new {
            self.if_there = true;
        } else if is_set && is("get") {
            self.get = true;
        } else if is_set && is("keepttl") && self.time.is_none() {
            self.keep = true;
        } else if !is_set && is("persist") && self.time.is_none() {
            self.persist = true;
        } else {
            let units = [("ex", Unit::EX), ("px", Unit::PX), ("exat", Unit::EXAT), ("pxat", Unit::PXAT)];
            let unit = units.into_iter().find(|(name, _)| is(name)).map(|(_, unit)| unit);
            let (Some(unit), Some(time)) = (unit, next) else { return Err(SYNTAX) };
            if self.keep || self.persist || self.time.is_some_and(|(other, _)| other != unit) {
                return Err(SYNTAX);
            }
            self.time = Some((unit, time));
            return Ok(2);
        }
        Ok(1)
    }

    /// When what is written is to expire, and in milliseconds if it is.
    pub fn expiry(&self, command: &str, now: u64) -> Result<(Expiry, Option<i64>), Refused> {
        match self.time {
            Some((unit, time)) => {
                let millis = self::millis(time, unit, command, now)?;
                Ok((Expiry::At(expiry(millis)), Some(millis)))
            }
            None if self.keep => Ok((Expiry::Keep, None)),
            None => Ok((Expiry::Never, None)),
        }
    }
}

/// A time that must be more than none, in milliseconds since 1970.
pub(super) fn millis(time: &[u8], unit: Unit, command: &str, now: u64) -> Result<i64, Refused> {
    let time = integer(time)?;
    let millis = if time > 0 { unit.to_millis(time, now) } else { None };
    millis.ok_or_else(|| Refused::expire_time(command))
}
