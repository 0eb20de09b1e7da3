//! Arguments common to several commands.

use crate::commands::Context;
use crate::commands::error::{CommandError, NO_INT, NO_INTEGER, SYNTAX};
use crate::resp::{Args, number};
use crate::store::Expiry;

/// Latest expiry time of the store, in the year 10889. Later times are reduced to it.
const MAX_EXPIRY: u64 = (1 << 48) - 1;

pub(super) fn integer(arg: &[u8]) -> Result<i64, CommandError> {
    number::parse(arg).ok_or(NO_INTEGER)
}

/// Parses a 32-bit integer.
pub(super) fn int(arg: &[u8]) -> Result<i32, CommandError> {
    integer(arg)?.try_into().map_err(|_| NO_INT)
}

/// Unit and base of a time argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// Seconds instead of milliseconds.
    pub seconds: bool,
    /// Relative to now instead of to 1970.
    pub relative: bool,
}

impl Unit {
    pub const EX: Unit = Unit { seconds: true, relative: true };
    pub const PX: Unit = Unit { seconds: false, relative: true };
    pub const EXAT: Unit = Unit { seconds: true, relative: false };
    pub const PXAT: Unit = Unit { seconds: false, relative: false };

    /// Converts `time` to a time of the server's clock. Returns `None` on overflow.
    pub fn to_millis(self, time: i64, cx: &Context<'_, '_>) -> Option<i64> {
        let millis = if self.seconds { time.checked_mul(1000)? } else { time };
        if self.relative { millis.checked_add(cx.now as i64) } else { millis.checked_sub(cx.wall_ahead) }
    }
}

/// Returns the expiry time for `millis`. Exported strings with an expiry time of 0 do not expire.
pub(super) fn expiry(millis: i64) -> u64 {
    (millis.max(1) as u64).min(MAX_EXPIRY)
}

/// Options of `SET` and `GETEX`.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Options<'a> {
    pub if_new: bool,
    pub if_exists: bool,
    pub get: bool,
    pub keep_ttl: bool,
    pub persist: bool,
    pub time: Option<(Unit, &'a [u8])>,
}

/// Command whose options are parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Set,
    Getex,
}

impl<'a> Options<'a> {
    pub fn parse(args: Args<'a>, from: usize, of: Of) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let mut at = from;
        while let Some(option) = args.get(at) {
            at += options.add(option, args.get(at + 1), of)?;
        }
        Ok(options)
    }

    /// Adds `option`. Returns the number of arguments it consists of.
    fn add(&mut self, option: &'a [u8], next: Option<&'a [u8]>, of: Of) -> Result<usize, CommandError> {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let is_set = of == Of::Set;
        if is_set && is("nx") && !self.if_exists {
            self.if_new = true;
        } else if is_set && is("xx") && !self.if_new {
            self.if_exists = true;
        } else if is_set && is("get") {
            self.get = true;
        } else if is_set && is("keepttl") && self.time.is_none() {
            self.keep_ttl = true;
        } else if !is_set && is("persist") && self.time.is_none() {
            self.persist = true;
        } else {
            let units = [("ex", Unit::EX), ("px", Unit::PX), ("exat", Unit::EXAT), ("pxat", Unit::PXAT)];
            let unit = units.into_iter().find(|(name, _)| is(name)).map(|(_, unit)| unit);
            let (Some(unit), Some(time)) = (unit, next) else { return Err(SYNTAX) };
            if self.keep_ttl || self.persist || self.time.is_some_and(|(other, _)| other != unit) {
                return Err(SYNTAX);
            }
            self.time = Some((unit, time));
            return Ok(2);
        }
        Ok(1)
    }

    /// Returns the expiry of the written value, and the time in milliseconds if one is given.
    pub fn expiry(&self, command: &str, cx: &Context<'_, '_>) -> Result<(Expiry, Option<i64>), CommandError> {
        match self.time {
            Some((unit, time)) => {
                let millis = self::millis(time, unit, command, cx)?;
                Ok((Expiry::At(expiry(millis)), Some(millis)))
            }
            None if self.keep_ttl => Ok((Expiry::Keep, None)),
            None => Ok((Expiry::Never, None)),
        }
    }
}

/// Parses a time, which must be positive, to a time of the server's clock.
pub(super) fn millis(time: &[u8], unit: Unit, command: &str, cx: &Context<'_, '_>) -> Result<i64, CommandError> {
    let time = integer(time)?;
    let millis = if time > 0 { unit.to_millis(time, cx) } else { None };
    millis.ok_or_else(|| CommandError::expire_time(command))
}
