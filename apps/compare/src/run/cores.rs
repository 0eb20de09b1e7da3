//! Cores of a comparison's threads, the same for every row.

/// The cores of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Core of the server's worker.
    pub worker: usize,
    /// Core of the service, if it has its own thread.
    pub service: usize,
    /// Core of the load.
    pub load: usize,
    /// Set if the load's core belongs to another machine.
    pub two_machines: bool,
}

impl Cores {
    /// Chooses from the `usable` cores at the server and at the load, or takes `servers` and `loads`: one core each; a
    /// second server core is the service's.
    ///
    /// # Errors
    /// A description of the invalid core.
    pub fn choose(
        usable: [&[usize]; 2],
        two_machines: bool,
        servers: Option<&[usize]>,
        loads: Option<&[usize]>,
    ) -> Result<Cores, String> {
        let there = if two_machines { " there" } else { "" };
        for (option, cores, usable) in [("--server-cores", servers, usable[0]), ("--load-cores", loads, usable[1])] {
            if let Some(core) = cores.into_iter().flatten().find(|core| !usable.contains(core)) {
                return Err(format!("{option}: core {core} cannot be used{there}: name one of {usable:?}"));
            }
        }
        let none = |end| format!("no core of the {end}'s machine can be used");
        let is_free = |core: &&usize| two_machines || !servers.is_some_and(|servers| servers.contains(core));
        let load = match loads {
            Some(loads) => loads.first(),
            // The last core: servers take the first.
            None => usable[1].iter().rev().find(is_free).or(usable[1].last()),
        };
        let load = *load.ok_or_else(|| none("load"))?;
        let mut free = usable[0].iter().copied().filter(|core| two_machines || *core != load);
        let (worker, service) = match servers {
            Some(servers) => (servers.first().copied(), servers.get(1).copied()),
            None => (free.next().or((!two_machines).then_some(load)), free.next()),
        };
        let worker = worker.ok_or_else(|| none("server"))?;
        Ok(Cores { worker, service: service.unwrap_or(worker), load, two_machines })
    }

    /// Returns the server's cores, as in the results.
    pub fn servers(&self) -> Vec<usize> {
        if self.service == self.worker { vec![self.worker] } else { vec![self.worker, self.service] }
    }

    /// Returns the cores of servers and loads.
    pub fn all(&self) -> Vec<usize> {
        [self.servers(), vec![self.load]].concat()
    }

    /// Returns whether polling threads share a core, with the service on its own thread if `split`.
    pub fn shared(&self, split: bool) -> bool {
        let with_load = |core| !self.two_machines && core == self.load;
        with_load(self.worker) || split && (self.service == self.worker || with_load(self.service))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(usable: &[usize], servers: Option<&[usize]>, loads: Option<&[usize]>) -> (usize, usize, usize) {
        let Cores { worker, service, load, .. } = Cores::choose([usable; 2], false, servers, loads).unwrap();
        (worker, service, load)
    }

    #[test]
    fn threads_have_their_own_cores_if_there_are_enough() {
        assert_eq!(chosen(&[0, 1, 2, 3], None, None), (0, 1, 3));
        assert_eq!(chosen(&[4, 5, 6], None, None), (4, 5, 6));
        assert_eq!(chosen(&[0, 1], None, None), (0, 0, 1));
        assert_eq!(chosen(&[7], None, None), (7, 7, 7));
    }

    #[test]
    fn given_cores_are_used() {
        assert_eq!(chosen(&[0, 1, 2, 3], Some(&[3]), None), (3, 3, 2));
        assert_eq!(chosen(&[0, 1, 2, 3], Some(&[2, 3]), Some(&[0])), (2, 3, 0));
        assert_eq!(chosen(&[0, 1, 2, 3], None, Some(&[0])), (1, 2, 0));
        let error = Cores::choose([&[0, 1]; 2], false, Some(&[2]), None).unwrap_err();
        assert!(error.contains("core 2"), "{error}");
    }

    #[test]
    fn shared_cores_are_detected() {
        let two = Cores::choose([&[0, 1]; 2], false, None, None).unwrap();
        assert!(!two.shared(false) && two.shared(true));
        let three = Cores::choose([&[0, 1, 2]; 2], false, None, None).unwrap();
        assert!(!three.shared(false) && !three.shared(true));
        assert!(Cores::choose([&[0]; 2], false, None, None).unwrap().shared(false));
        assert_eq!((two.servers(), three.servers()), (vec![0], vec![0, 1]));
    }

    #[test]
    fn machines_share_no_cores() {
        let cores = Cores::choose([&[0, 1]; 2], true, None, None).unwrap();
        assert_eq!((cores.worker, cores.service, cores.load), (0, 1, 1));
        assert!(!cores.shared(false) && !cores.shared(true));
        let few = Cores::choose([&[0]; 2], true, None, None).unwrap();
        assert!(!few.shared(false) && few.shared(true));
        let named = Cores::choose([&[0, 1, 2], &[4]], true, Some(&[2]), Some(&[4])).unwrap();
        assert_eq!((named.worker, named.service, named.load), (2, 2, 4));
        let error = Cores::choose([&[0]; 2], true, None, Some(&[1])).unwrap_err();
        assert!(error.contains("--load-cores: core 1"), "{error}");
        assert!(Cores::choose([&[0], &[]], true, None, None).is_err());
    }
}
