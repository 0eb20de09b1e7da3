//! Places of records that clients have found, by key.

use linerate_kv::export::Candidate;
use linerate_service::time::{Duration, Instant};

/// Maximum number of places of a worker.
const MOST: u64 = 16_384;
/// Interval of touches of a key.
const TOUCH_KEY: Duration = Duration::from_secs(1);
/// Maximum number of GETs through the row before the place of a superseded record is recorded again.
const MOST_WAITS: u8 = 15;

/// Places of records. A GET of a key with a known place is one READ, as long as the record is not superseded.
///
/// The place of a key that changes nearly as often as it is read is not recorded, because each GET would take an
/// additional READ. Each READ of a superseded record doubles the number of GETs before the place is recorded again, and
/// each READ of a current record halves it.
#[derive(Debug, Default)]
pub struct KnownPlaces {
    /// Places by the key number modulo the length. A key replaces another key with the same remainder.
    places: Box<[Place]>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    number: u64,
    candidate: Option<Candidate>,
    touched_at: Option<Instant>,
    /// Remaining GETs through the row before the place is recorded.
    waits: u8,
    /// Value of `waits` after the last READ of a superseded record, halved by each READ of a current record.
    backoff: u8,
}

impl Place {
    /// Place of no key.
    const NONE: Place = Place { number: u64::MAX, candidate: None, touched_at: None, waits: 0, backoff: 0 };
}

impl KnownPlaces {
    /// Returns empty places for `keys` keys.
    pub fn new(keys: u64) -> Self {
        KnownPlaces { places: vec![Place::NONE; keys.min(MOST) as usize].into() }
    }

    fn at(&mut self, number: u64) -> Option<&mut Place> {
        let len = self.places.len() as u64;
        let place = self.places.get_mut(number.checked_rem(len)? as usize)?;
        if place.number != number {
            *place = Place { number, ..Place::NONE };
        }
        Some(place)
    }

    /// Returns the place of key `number`, if it is known.
    pub fn get(&self, number: u64) -> Option<Candidate> {
        let place = self.places.get(number.checked_rem(self.places.len() as u64)? as usize)?;
        place.candidate.filter(|_| place.number == number)
    }

    /// Records that the row of key `number` has led to the current record.
    pub fn found(&mut self, number: u64, candidate: Candidate) {
        let Some(place) = self.at(number) else { return };
        match place.waits.checked_sub(1) {
            Some(waits) => place.waits = waits,
            None => place.candidate = Some(candidate),
        }
    }

    /// Records that the value of key `number` was at its known place.
    pub fn confirmed(&mut self, number: u64) {
        if let Some(place) = self.at(number) {
            place.backoff /= 2;
        }
    }

    /// Records that the record at the place of key `number` was superseded.
    pub fn superseded(&mut self, number: u64) {
        let Some(place) = self.at(number) else { return };
        place.candidate = None;
        place.backoff = (2 * place.backoff + 1).min(MOST_WAITS);
        place.waits = place.backoff;
    }

    /// Returns true if key `number` has not been touched for a while, and records a touch at `now`.
    pub fn touch(&mut self, number: u64, now: Instant) -> bool {
        let Some(place) = self.at(number) else { return false };
        let is_due = place.touched_at.is_none_or(|at| now >= at + TOUCH_KEY);
        if is_due {
            place.touched_at = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_kv::export::{Export, Layout, Next, Search};

    fn candidate() -> Candidate {
        let export = Export::new(Layout::new(7, 1, 1, 100).unwrap(), false).unwrap();
        export.writer(0).set(b"key", b"value", None);
        let search = Search::new(export.layout(), b"key");
        let mut row = vec![0; search.row().len];
        export.memory().read(0, &mut row);
        let Next::Read(candidate) = search.in_row(&row) else { panic!("no record") };
        candidate
    }

    #[test]
    fn places_of_keys_replace_those_with_the_same_remainder() {
        let (mut places, candidate) = (KnownPlaces::new(10), candidate());
        places.found(3, candidate);
        assert_eq!([3, 4, 13].map(|number| places.get(number)), [Some(candidate), None, None]);
        places.found(13, candidate);
        assert_eq!([3, 13].map(|number| places.get(number)), [None, Some(candidate)]);
        let mut none = KnownPlaces::default();
        none.found(3, candidate);
        assert_eq!((none.get(3), none.touch(3, Instant::ZERO)), (None, false));
    }

    #[test]
    fn place_of_a_changing_key_is_recorded_after_increasing_numbers_of_gets() {
        let (mut places, candidate) = (KnownPlaces::new(10), candidate());
        let gets_until_kept = |places: &mut KnownPlaces| {
            (1..).find(|_| {
                places.found(3, candidate);
                places.get(3).is_some()
            })
        };
        let gets = [(); 6].map(|()| {
            let gets = gets_until_kept(&mut places).unwrap();
            places.superseded(3);
            gets
        });
        assert_eq!(gets, [1, 2, 4, 8, 16, 16]);
        gets_until_kept(&mut places);
        (0..4).for_each(|_| places.confirmed(3));
        places.superseded(3);
        assert_eq!(gets_until_kept(&mut places), Some(2));
    }

    #[test]
    fn key_is_touched_once_in_an_interval() {
        let mut places = KnownPlaces::new(10);
        let now = Instant::from_nanos(5);
        let just_before = now + TOUCH_KEY - Duration::from_nanos(1);
        assert_eq!(
            [now, now, just_before, now + TOUCH_KEY].map(|now| places.touch(3, now)),
            [true, false, false, true]
        );
        assert!(places.touch(4, now));
    }
}
