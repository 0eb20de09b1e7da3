//! Complete store against a map.

use super::*;
use crate::export::tests::{SEED, export, find};
use crate::export::{Export, Layout};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq)]
enum Value {
    String(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
}

type Map = HashMap<(u8, u8), (Value, Option<u64>)>;

#[derive(Debug, Clone)]
enum Do {
    Set(usize, u8, Option<Option<u64>>),
    SetLong(usize, u8),
    SetTagged(usize, u32),
    Append(usize, u8),
    SetRange(usize, usize, u8),
    Get,
    /// Stores a location hint that later `Get`s and `SetSeen`s use.
    See,
    /// Overwrites a value with one of the same length through the hint.
    SetSeen(u8),
    Remove,
    Expiry(Option<u64>),
    HSet {
        first: u16,
        count: u16,
        len: usize,
        fill: u8,
    },
    HDel {
        first: u16,
        count: u16,
    },
    Copy(u8),
    Rename(u8),
    Flush,
    Wait(u64),
    Tick(usize),
    Scan,
    RandomKey,
    Memory(usize),
}

fn operation() -> impl Strategy<Value = Do> {
    let delay = || prop_oneof![1..60u64, 1..5000u64, 1..1_000_000u64];
    let len = || prop_oneof![4 => 0..40usize, 3 => 0..600usize, 2 => 0..5000usize, 1 => 0..60_000usize];
    prop_oneof![
        6 => (len(), any::<u8>(), prop::option::of(prop::option::of(delay()))).prop_map(|(a, b, c)| Do::Set(a, b, c)),
        2 => (len(), any::<u8>()).prop_map(|(a, b)| Do::SetLong(a, b)),
        1 => (len(), any::<u32>()).prop_map(|(a, b)| Do::SetTagged(a, b)),
        2 => (len(), any::<u8>()).prop_map(|(a, b)| Do::Append(a, b)),
        2 => (len(), len(), any::<u8>()).prop_map(|(a, b, c)| Do::SetRange(a, b, c)),
        3 => Just(Do::Get),
        3 => Just(Do::See),
        3 => any::<u8>().prop_map(Do::SetSeen),
        2 => Just(Do::Remove),
        3 => prop::option::of(delay()).prop_map(Do::Expiry),
        8 => (0..300u16, 1..100u16, prop_oneof![3 => 0..40usize, 2 => 0..600usize, 1 => 0..9000usize], any::<u8>())
            .prop_map(|(first, count, len, fill)| Do::HSet { first, count: if len > 1000 { count % 4 } else { count }, len, fill }),
        4 => (0..300u16, 1..300u16).prop_map(|(first, count)| Do::HDel { first, count }),
        2 => any::<u8>().prop_map(Do::Copy),
        2 => any::<u8>().prop_map(Do::Rename),
        1 => prop::bool::weighted(0.2).prop_map(|flush| if flush { Do::Flush } else { Do::Scan }),
        2 => delay().prop_map(Do::Wait),
        3 => (1..100usize).prop_map(Do::Tick),
        1 => Just(Do::RandomKey),
        1 => (1..24usize).prop_map(Do::Memory),
    ]
}

fn field(n: u16) -> Vec<u8> {
    let mut name = n.to_le_bytes().to_vec();
    name.resize(2 + usize::from(n % 50) * usize::from(n % 3), b'f');
    name
}

struct Bench {
    store: Store,
    export: Export,
    map: Map,
    /// Location hints by keyspace and key.
    seen: HashMap<(u8, u8), LocationHint>,
    now: u64,
}

/// Keyspace and key number, and the bytes of the key.
type Name = ((u8, u8), Vec<u8>);

impl Bench {
    fn key<'a>(&self, name: &'a Name) -> Key<'a> {
        self.store.key(name.0.0, &name.1)
    }

    /// Checks that exported values equal those of the store. With enough `room`, every short value is exported.
    fn compare_export(&self, room: bool) -> Result<(), TestCaseError> {
        for name in (0..40).map(super::name) {
            let there = self.store.peek_untouched(&self.store.key(0, &name), self.now);
            let found = find(&self.export, &name, self.now);
            if found.is_some() {
                prop_assert!(found == there, "{:?} differs from its export", name);
            } else if let Some(value) = there {
                let fits = name.len() + value.len() <= self.export.layout().longest();
                prop_assert!(!fits || !room, "{:?} was not exported", name);
            }
        }
        Ok(())
    }

    /// Removes expired and evicted keys from the map and compares the rest with the store.
    fn compare(&mut self, name: &Name) -> Result<(), TestCaseError> {
        let (key, now) = (self.key(name), self.now);
        self.map.retain(|_, (_, at)| at.is_none_or(|at| at > now));
        let Some(value_type) = self.store.value_type(&key, now) else {
            if self.map.remove(&name.0).is_some() {
                prop_assert!(self.store.counts().evicted > 0, "{:?} is lost", name.0);
            }
            return Ok(());
        };
        let Some((value, at)) = self.map.get(&name.0) else { panic!("{:?} was never stored", name.0) };
        prop_assert_eq!(self.store.expires_at(&key, now), Some(*at));
        match value {
            Value::String(value) => {
                prop_assert_eq!(value_type, ValueType::String);
                let there = self.store.peek(&key, now).unwrap().unwrap();
                prop_assert!(there == value[..] && there.len() == value.len());
            }
            Value::Hash(fields) => {
                prop_assert_eq!(value_type, ValueType::Hash);
                prop_assert_eq!(self.store.hlen(&key, now), Ok(fields.len()));
                let mut there = BTreeMap::new();
                let visited = self.store.hvisit(&key, now, |field, value| {
                    there.insert(field.to_vec(), value.to_vec());
                });
                prop_assert_eq!(visited, Ok(fields.len()));
                prop_assert!(there == *fields);
                let (mut cursor, mut seen) = (0, 0);
                loop {
                    cursor = self
                        .store
                        .hscan(&key, cursor, 7, now, |field, value| {
                            seen += usize::from(fields.get(field).is_some_and(|there| value == there[..]));
                        })
                        .unwrap();
                    if cursor == 0 {
                        break;
                    }
                }
                prop_assert_eq!(seen, fields.len());
                if let Some((field, value)) = fields.iter().next() {
                    prop_assert!(self.store.hget(&key, field, now).unwrap().unwrap() == value[..]);
                    prop_assert_eq!(self.store.hget(&key, b"none", now).unwrap().map(|it| it.to_vec()), None);
                }
            }
        }
        Ok(())
    }

    /// Returns the expected string and its expiry time, or `None` if the value is no string.
    fn string(&self, name: &Name) -> Option<(Vec<u8>, Option<u64>)> {
        match self.map.get(&name.0) {
            None => Some((Vec::new(), None)),
            Some((Value::String(value), at)) => Some((value.clone(), *at)),
            Some(_) => None,
        }
    }

    fn step(&mut self, name: &Name, operation: Do, may_refuse: bool) -> Result<(), TestCaseError> {
        self.compare(name)?;
        let (key, now) = (self.key(name), self.now);
        let (version, flushes) = (self.store.watch(&key), self.store.flushes(name.0.0));
        let before = self.map.get(&name.0).cloned();
        let store = &mut self.store;
        let refused = |result: Result<(), Error>| {
            prop_assert!(result.is_ok() || result == Err(Error::Full) && may_refuse, "{:?}", result);
            Ok(result.is_err())
        };
        match operation {
            Do::Set(len, fill, expiry) => {
                let old = before.as_ref().and_then(|(_, at)| *at);
                let (requested, at) = match expiry {
                    None => (Expiry::Keep, old),
                    Some(None) => (Expiry::Never, None),
                    Some(Some(delay)) => (Expiry::At(now + delay), Some(now + delay)),
                };
                let value = vec![fill; len];
                if !refused(store.set(&key, &value[..], requested, now))? {
                    self.map.insert(name.0, (Value::String(value), at));
                }
            }
            Do::SetLong(len, fill) => {
                let value: Vec<u8> = (0..len).map(|n| fill.wrapping_add(n as u8)).collect();
                let result = store.long(len, now).and_then(|mut writer| {
                    for part in value.chunks(700) {
                        assert_eq!(writer.fill(part), part.len());
                    }
                    store.set(&key, writer.finish(), Expiry::Never, now)
                });
                if !refused(result)? {
                    self.map.insert(name.0, (Value::String(value), None));
                }
            }
            Do::SetTagged(len, flags) => {
                let value = vec![1; len];
                let result = store.set_with_meta(&key, &value[..], flags, 3, Expiry::Keep, now);
                if let Ok(cas) = result {
                    prop_assert_eq!(store.meta(&key, now), Some(ItemMeta { flags, cas, marks: 3 }));
                }
                if !refused(result.map(|_| ()))? {
                    let at = before.as_ref().and_then(|(_, at)| *at);
                    self.map.insert(name.0, (Value::String(value), at));
                }
            }
            Do::Append(len, fill) => {
                let more = vec![fill; len];
                let result = store.append(&key, &more, now);
                let Some((mut value, at)) = self.string(name) else {
                    prop_assert_eq!(result, Err(Error::WrongType));
                    self.store.unwatch(&key);
                    return Ok(());
                };
                value.extend_from_slice(&more);
                prop_assert!(result.is_err() || result == Ok(value.len()));
                if !refused(result.map(|_| ()))? {
                    self.map.insert(name.0, (Value::String(value), at));
                }
            }
            Do::SetRange(from, len, fill) => {
                let new = vec![fill; len];
                let result = store.set_range(&key, from, &new, now);
                let Some((mut value, at)) = self.string(name) else {
                    prop_assert_eq!(result, Err(Error::WrongType));
                    self.store.unwatch(&key);
                    return Ok(());
                };
                if len > 0 {
                    value.resize(value.len().max(from + len), 0);
                    value[from..from + len].copy_from_slice(&new);
                }
                prop_assert!(result.is_err() || result == Ok(value.len()));
                if !refused(result.map(|_| ()))? && (len > 0 || before.is_some()) {
                    self.map.insert(name.0, (Value::String(value), at));
                }
            }
            Do::Get => {
                let seen = self.seen.get(&name.0).copied().unwrap_or_default();
                let there = match store.get_with_hint(&key, seen, now) {
                    Some(value) => Ok(Some(value.to_vec())),
                    None => store.get(&key, now).map(|it| it.map(|it| it.to_vec())),
                };
                let expected = match &before {
                    None => Ok(None),
                    Some((Value::String(value), _)) => Ok(Some(value.clone())),
                    Some(_) => Err(Error::WrongType),
                };
                prop_assert_eq!(there, expected);
            }
            Do::See => _ = self.seen.insert(name.0, store.location_hint(key.hash())),
            Do::SetSeen(fill) => {
                let Some((Value::String(old), at)) = &before else {
                    self.store.unwatch(&key);
                    return Ok(());
                };
                let value = vec![fill; old.len()];
                let seen = self.seen.get(&name.0).copied().unwrap_or_default();
                if store.set_with_hint(&key, seen, &value, now) {
                    prop_assert_eq!(*at, None, "an item with an expiry time was overwritten in place");
                    self.map.insert(name.0, (Value::String(value), None));
                }
            }
            Do::Remove => prop_assert_eq!(store.remove(&key, now), self.map.remove(&name.0).is_some()),
            Do::Expiry(delay) => {
                let at = delay.map(|delay| now + delay);
                let result = store.set_expiry(&key, at, now);
                prop_assert!(result.is_err() || result == Ok(before.is_some()));
                if !refused(result.map(|_| ()))?
                    && let Some((_, expires)) = self.map.get_mut(&name.0)
                {
                    *expires = at;
                }
            }
            Do::HSet { first, count, len, fill } => {
                for n in first..first + count {
                    let (name_of_field, value) = (field(n), vec![fill; len + usize::from(n % 5)]);
                    let result = self.store.hset(&key, &name_of_field, &value[..], now);
                    let old = self.map.get_mut(&name.0);
                    if let Some((Value::String(_), _)) = old {
                        prop_assert_eq!(result, Err(Error::WrongType));
                        continue;
                    }
                    if refused(result.map(|_| ()))? {
                        continue;
                    }
                    let new = (Value::Hash(BTreeMap::new()), None);
                    let (Value::Hash(fields), _) = self.map.entry(name.0).or_insert(new) else { unreachable!() };
                    // If the hash was evicted in between, it starts anew.
                    let is_first = self.store.hlen(&key, now) == Ok(1);
                    if result == Ok(true) && (fields.contains_key(&name_of_field) || is_first) {
                        fields.clear();
                    }
                    prop_assert_eq!(result, Ok(fields.insert(name_of_field, value).is_none()));
                }
            }
            Do::HDel { first, count } => {
                for n in first..first + count {
                    let result = store.hdel(&key, &field(n), now);
                    match self.map.get_mut(&name.0) {
                        Some((Value::String(_), _)) => prop_assert_eq!(result, Err(Error::WrongType)),
                        Some((Value::Hash(fields), _)) => {
                            prop_assert_eq!(result, Ok(fields.remove(&field(n)).is_some()));
                            if fields.is_empty() {
                                self.map.remove(&name.0);
                            }
                        }
                        None => prop_assert_eq!(result, Ok(false)),
                    }
                }
            }
            Do::Copy(other) => {
                let to: Name = ((name.0.0, other % 40), super::name(other % 40));
                self.compare(&to)?;
                let key = self.key(name);
                if let Some(owned) = self.store.dump(&key, now) {
                    let source = self.map[&name.0].clone();
                    let key = self.key(&to);
                    if refused(self.store.restore(&key, owned, now))? {
                        self.map.remove(&to.0);
                    } else {
                        self.map.insert(to.0, source);
                    }
                    self.compare(&to)?;
                }
            }
            Do::Rename(other) if other % 40 != name.0.1 => {
                let to: Name = ((name.0.0, other % 40), super::name(other % 40));
                self.compare(&to)?;
                let (key, to_key) = (self.key(name), self.key(&to));
                let result = self.store.rename(&key, &to_key, now);
                prop_assert!(result.is_err() || result == Ok(before.is_some()));
                if !refused(result.map(|_| ()))?
                    && let Some(value) = self.map.remove(&name.0)
                {
                    self.map.insert(to.0, value);
                }
                self.compare(&to)?;
            }
            Do::Rename(_) => {}
            Do::Flush => {
                store.flush(name.0.0);
                prop_assert_eq!((store.len(name.0.0), store.expiring(name.0.0)), (0, 0));
                self.map.retain(|(space, _), _| *space != name.0.0);
            }
            Do::Wait(delay) => self.now += delay,
            Do::Tick(budget) => _ = store.tick(now, budget),
            Do::Scan => {
                let mut seen = std::collections::BTreeSet::new();
                let mut cursor = 0;
                loop {
                    cursor = store.scan(name.0.0, cursor, 5, now, |key, _| {
                        seen.insert(key.to_vec());
                    });
                    if cursor == 0 {
                        break;
                    }
                }
                for n in 0..40 {
                    let name: Name = ((name.0.0, n), super::name(n));
                    self.compare(&name)?;
                    prop_assert_eq!(seen.contains(&name.1), self.map.contains_key(&name.0));
                }
            }
            Do::RandomKey => {
                let random = store.random_key(name.0.0, now);
                prop_assert!(random.is_none() || store.exists(&store.key(name.0.0, &random.clone().unwrap()), now));
                for n in 0..40 {
                    let name: Name = ((name.0.0, n), super::name(n));
                    self.compare(&name)?;
                    prop_assert!(random.is_some() || !self.map.contains_key(&name.0));
                }
            }
            Do::Memory(quarters) => {
                if may_refuse {
                    store.set_memory((1 << 20) + quarters * (256 << 10));
                }
            }
        }
        let (key, now) = (self.key(name), self.now);
        self.compare(name)?;
        let after = self.map.get(&name.0).cloned();
        let is_noted = self.store.version(&key) != version || self.store.flushes(name.0.0) != flushes;
        prop_assert!(after == before || is_noted, "a change was not noted");
        self.store.unwatch(&key);
        let _ = now;
        Ok(())
    }
}

fn run(evict: EvictionPolicy, memory: usize, steps: Vec<((u8, u8), Do)>) -> Result<(), TestCaseError> {
    let may_refuse = memory < 64 << 20;
    let room = !may_refuse;
    let layout = if room { Layout::new(SEED, 1, 500, 1 << 17) } else { Layout::new(SEED, 1, 2, 500) };
    let (export, writers) = export(layout.unwrap());
    let mut bench = Bench { store: store(memory, evict), export, map: Map::new(), seen: HashMap::new(), now: 1 };
    writers.into_iter().for_each(|writer| bench.store.export_to(writer));
    for ((space, key), operation) in steps {
        bench.step(&((space, key), name(key)), operation, may_refuse)?;
        for space in 0..2 {
            let stats = bench.store.stats();
            let published = (stats.keys(space) as usize, stats.expiring(space) as usize);
            prop_assert_eq!(published, (bench.store.len(space), bench.store.expiring(space)));
        }
        bench.compare_export(room)?;
    }
    // The final state is as expected, and flushes free all memory.
    for space in 0..2 {
        for key in 0..40 {
            bench.compare(&((space, key), name(key)))?;
        }
        // The comparison removed expired keys.
        let there = || bench.map.iter().filter(|((its, _), _)| *its == space);
        let expiring = there().filter(|(_, (_, at))| at.is_some()).count();
        prop_assert_eq!((bench.store.len(space), bench.store.expiring(space)), (there().count(), expiring));
        prop_assert!(evict != EvictionPolicy::None || bench.store.counts().evicted == 0);
        bench.store.flush(space);
    }
    while bench.store.tick(bench.now, 100) {}
    prop_assert!(bench.store.is_empty());
    prop_assert_eq!((bench.store.longs.len(), bench.store.tables.len(), bench.store.heap.arena.used()), (0, 0, 0));
    prop_assert_eq!(bench.store.external_bytes, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// With enough memory, nothing is lost or refused.
    #[test]
    fn store_is_a_map(steps in prop::collection::vec(((0..2u8, 0..12u8), operation()), 1..120)) {
        run(EvictionPolicy::None, 64 << 20, steps)?;
    }

    /// Evictions and refusals leave the other values unchanged.
    #[test]
    fn store_under_memory_pressure_keeps_other_values(
        steps in prop::collection::vec(((0..2u8, 0..40u8), operation()), 1..200),
        policy in 0..8usize,
    ) {
        let policies = [
            EvictionPolicy::Random(Evictable::AllKeys), EvictionPolicy::Lru(Evictable::AllKeys), EvictionPolicy::Lfu(Evictable::AllKeys), EvictionPolicy::Ttl,
            EvictionPolicy::Random(Evictable::Volatile), EvictionPolicy::Lru(Evictable::Volatile), EvictionPolicy::Lfu(Evictable::Volatile), EvictionPolicy::None,
        ];
        run(policies[policy], 2 << 20, steps)?;
    }
}
