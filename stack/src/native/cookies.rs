//! stub
use super::isn::Secrets;
use super::seq::Seq;
use crate::tuple::Tuple;
use linerate_bypass::time::Instant;
pub struct CookieOptions {
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub ecn: bool,
}
pub fn make(_: &Secrets, _: &Tuple, _: Seq, _: u16, _: Instant) -> Seq {
    Seq(0)
}
pub fn check(_: &Secrets, _: &Tuple, _: Seq, _: Seq, _: Instant) -> Option<u16> {
    None
}
pub fn encode_timestamp(v: u32, _: CookieOptions) -> u32 {
    v
}
pub fn decode_timestamp(_: u32) -> CookieOptions {
    CookieOptions { window_scale: None, sack: false, ecn: false }
}
