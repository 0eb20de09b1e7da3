//! CPU cores of workers and services.

mod topology;

use crate::error::Error;
use linerate_bypass::Via;
use linerate_service::ConnId;
use std::str::FromStr;
pub use topology::Topology;

/// Cores that Linux's affinity masks can name.
const CORES: usize = 1024;

/// List of cores: `2,3,4`, `2-4`, or a mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreList(Vec<usize>);

impl CoreList {
    /// Returns the cores in the order in which they were written; at least one.
    pub fn cores(&self) -> &[usize] {
        &self.0
    }
}

/// Returns the cores in this process's affinity mask.
pub fn usable() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

impl FromStr for CoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.parse() {
            Ok(core) if core < CORES => Ok(core),
            _ => Err(format!("'{text}' is not a core number: write 2,3,4 or 2-4")),
        };
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            for core in number(first)?..=number(last)? {
                if cores.contains(&core) {
                    return Err(format!("core {core} is listed twice"));
                }
                cores.push(core);
            }
        }
        if cores.is_empty() { Err("the range is empty".to_owned()) } else { Ok(CoreList(cores)) }
    }
}

/// Default choice of cores where neither [`cores`](crate::NetConfig::cores) nor
/// [`service_cores`](crate::NetConfig::service_cores) names them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum CorePlacement {
    /// The first usable cores: servers.
    #[default]
    First,
    /// The last usable cores: loads, so that a server and a load on one machine share a core only if they have to.
    Last,
}

/// Returns the core of each worker of `via`, chosen from the usable cores, first from the NUMA node of the device.
/// Warns if a worker is on another node.
pub fn choose(
    via: &Via,
    workers: Option<usize>,
    list: Option<&CoreList>,
    place: CorePlacement,
) -> Result<Vec<usize>, Error> {
    let near = Topology::of_machine().cores_near(via);
    let chosen = choose_from(&near_first(usable(), near.as_deref(), place), workers, list, place)?;
    if let Some(near) = near
        && let Some(core) = chosen.iter().find(|core| !near.contains(core))
    {
        tracing::warn!("{via} is on another NUMA node than core {core}: its node has the cores {near:?}");
    }
    Ok(chosen)
}

/// Returns the core of each worker's service with [`Split`](crate::ThreadingMode::Split): `list`, or cores without a
/// worker, first from the NUMA node of the device of `via`. With too few cores the services share their workers' cores.
pub fn choose_services(
    via: &Via,
    list: Option<&CoreList>,
    workers: &[usize],
    place: CorePlacement,
) -> Result<Vec<usize>, Error> {
    let near = Topology::of_machine().cores_near(via);
    choose_services_from(&near_first(usable(), near.as_deref(), place), list, workers, place)
}

/// Moves the cores in `near` to the end at which `place` begins.
fn near_first(mut usable: Vec<usize>, near: Option<&[usize]>, place: CorePlacement) -> Vec<usize> {
    if let Some(near) = near {
        usable.sort_by_key(|core| near.contains(core) == (place == CorePlacement::Last));
    }
    usable
}

fn no_such_core(setting: &'static str, core: usize, usable: &[usize]) -> Error {
    let mut usable = usable.to_vec();
    usable.sort_unstable();
    Error::NoSuchCore { setting, core, usable }
}

fn choose_services_from(
    usable: &[usize],
    list: Option<&CoreList>,
    workers: &[usize],
    place: CorePlacement,
) -> Result<Vec<usize>, Error> {
    if let Some(CoreList(cores)) = list {
        if let Some(&core) = cores.iter().find(|core| !usable.contains(core)) {
            return Err(no_such_core("service_cores", core, usable));
        }
        if cores.len() != workers.len() {
            return Err(Error::ServiceCoresMismatch { services: cores.len(), workers: workers.len() });
        }
        return Ok(cores.clone());
    }
    let mut free: Vec<usize> = usable.iter().copied().filter(|core| !workers.contains(core)).collect();
    if place == CorePlacement::Last {
        free.reverse();
    }
    if free.len() < workers.len() {
        return Ok(workers.to_vec());
    }
    free.truncate(workers.len());
    Ok(free)
}

fn choose_from(
    usable: &[usize],
    workers: Option<usize>,
    list: Option<&CoreList>,
    place: CorePlacement,
) -> Result<Vec<usize>, Error> {
    let cores = match list {
        Some(CoreList(cores)) => {
            if let Some(&core) = cores.iter().find(|core| !usable.contains(core)) {
                return Err(no_such_core("cores", core, usable));
            }
            cores.clone()
        }
        None => {
            let asked = workers.unwrap_or(1);
            if asked > usable.len() {
                return Err(Error::MoreWorkersThanCores { asked, cores: usable.len() });
            }
            match place {
                CorePlacement::First => usable[..asked].to_vec(),
                CorePlacement::Last => usable[usable.len() - asked..].to_vec(),
            }
        }
    };
    if cores.len() > ConnId::MAX_WORKERS {
        return Err(Error::TooManyWorkers(cores.len()));
    }
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CoreList {
        text.parse().unwrap()
    }

    #[test]
    fn lists_and_ranges_mix() {
        assert_eq!(list("2,3,4"), CoreList(vec![2, 3, 4]));
        assert_eq!(list("2-4"), CoreList(vec![2, 3, 4]));
        assert_eq!(list("7,0-1"), CoreList(vec![7, 0, 1]));
    }

    #[test]
    fn invalid_core_lists_are_refused() {
        for text in ["", "x", "1,", "-1", "1-", "4-2", "1,1", "0-2,1", "0-4294967295", "1024"] {
            assert!(text.parse::<CoreList>().is_err(), "{text}");
        }
    }

    #[test]
    fn servers_and_loads_start_at_opposite_ends() {
        let choose = |workers, place| choose_from(&[2, 5, 6], workers, None, place).unwrap();
        assert_eq!((choose(None, CorePlacement::First), choose(None, CorePlacement::Last)), (vec![2], vec![6]));
        assert_eq!(
            (choose(Some(2), CorePlacement::First), choose(Some(2), CorePlacement::Last)),
            (vec![2, 5], vec![5, 6])
        );
    }

    #[test]
    fn cores_of_the_node_of_a_device_come_before_others() {
        for (place, chosen) in [
            (CorePlacement::First, [vec![4], vec![4, 5], vec![4, 5, 0]]),
            (CorePlacement::Last, [vec![5], vec![4, 5], vec![7, 4, 5]]),
        ] {
            let usable = near_first(vec![0, 1, 4, 5, 6, 7], Some(&[3, 4, 5]), place);
            let choose = |workers| choose_from(&usable, Some(workers), None, place).unwrap();
            assert_eq!([1, 2, 3].map(choose), chosen, "{place:?}");
            let services = choose_services_from(&usable, None, &chosen[0], place).unwrap();
            assert_eq!(services, [if place == CorePlacement::First { 5 } else { 4 }]);
            let error = choose_from(&usable, None, Some(&list("3")), place).unwrap_err().to_string();
            assert_eq!(error, "`cores`: core 3 cannot be used by this process: choose from 0,1,4,5,6,7");
        }
        assert_eq!(near_first(vec![0, 1, 2], None, CorePlacement::First), [0, 1, 2]);
    }

    #[test]
    fn explicit_list_is_kept_in_order() {
        assert_eq!(choose_from(&[2, 5, 6], None, Some(&list("6,2")), CorePlacement::First).unwrap(), [6, 2]);
    }

    #[test]
    fn services_use_cores_without_workers_or_share_theirs() {
        let choose = |list: Option<&str>, workers: &[usize], place| {
            choose_services_from(&[0, 1, 2, 3], list.map(self::list).as_ref(), workers, place)
        };
        assert_eq!(choose(None, &[0], CorePlacement::First).unwrap(), [1]);
        assert_eq!(choose(None, &[3], CorePlacement::Last).unwrap(), [2]);
        assert_eq!(choose(None, &[0, 1], CorePlacement::First).unwrap(), [2, 3]);
        assert_eq!(choose(None, &[0, 1, 2], CorePlacement::First).unwrap(), [0, 1, 2]);
        assert_eq!(choose(Some("0"), &[0], CorePlacement::First).unwrap(), [0]);
        let error = choose(Some("1"), &[0, 2], CorePlacement::First).unwrap_err().to_string();
        assert_eq!(error, "`service_cores`: 1 for 2 workers: give one for each worker");
        let error = choose(Some("7"), &[0], CorePlacement::First).unwrap_err().to_string();
        assert_eq!(error, "`service_cores`: core 7 cannot be used by this process: choose from 0,1,2,3");
    }

    #[test]
    fn missing_cores_are_reported_with_the_usable_ones() {
        let error = choose_from(&[0, 1], Some(3), None, CorePlacement::First).unwrap_err();
        assert_eq!(error.to_string(), "`workers` 3: only 2 cores can be used: give at most 2");
        let error = choose_from(&[0, 1], None, Some(&list("1-2")), CorePlacement::First).unwrap_err();
        assert_eq!(error.to_string(), "`cores`: core 2 cannot be used by this process: choose from 0,1");
    }
}
