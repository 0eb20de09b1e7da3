//! Tests of faults, and of properties of devices.

mod drivers;
mod failing;
mod hardware;
mod iwarp;

use super::*;
use crate::tests::*;
