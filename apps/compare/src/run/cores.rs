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
    /// Chooses from the `usable` cores, or takes `servers` and `loads`: one core each; a second server core is the
    /// service's.
    ///
    /// # Errors
    /// A description of the invalid core.
    pub fn choose(usable: &[usize], servers: Option<&[usize]>, loads: Option<&[usize]>) -> Result<Cores, String> {
        let given = [("--server-cores", servers), ("--load-cores", loads)];
        for (option, cores) in given {
            if let Some(core) = cores.into_iter().flatten().find(|core| !usable.contains(core)) {
                return Err(format!("{option}: core {core} cannot be used: name one of {usable:?}"));
            }
        }
        let load = match loads {
            Some(loads) => loads[0],
            // Take the last core: servers take the first.
            None => *usable
                .iter()
                .rev()
                .find(|core| !servers.is_some_and(|servers| servers.contains(core)))
                .or(usable.last())
                .ok_or("no core can be used")?,
        };
        let mut free = usable.iter().copied().filter(|core| *core != load);
        let (worker, service) = match servers {
            Some([worker]) => (*worker, *worker),
            Some(servers) => (servers[0], servers[1]),
            None => {
                let worker = free.next().unwrap_or(load);
                (worker, free.next().unwrap_or(worker))
            }
        };
        Ok(Cores { worker, service, load, two_machines: false })
    }

    /// Chooses where servers and loads have a machine each, with these usable cores.
    ///
    /// # Errors
    /// A description of the invalid core.
    pub fn choose_on_two(
        usable: [&[usize]; 2],
        servers: Option<&[usize]>,
        loads: Option<&[usize]>,
    ) -> Result<Cores, String> {
        for (option, cores, usable) in [("--server-cores", servers, usable[0]), ("--load-cores", loads, usable[1])] {
            if let Some(core) = cores.into_iter().flatten().find(|core| !usable.contains(core)) {
                return Err(format!("{option}: core {core} cannot be used there: name one of {usable:?}"));
            }
        }
        let first = |cores: &[usize], machine: &str| {
            cores.first().copied().ok_or_else(|| format!("no core of the {machine}'s machine can be used"))
        };
        let of_server = servers.unwrap_or(usable[0]);
        let worker = first(of_server, "server")?;
        let service = of_server.get(1).copied().unwrap_or(worker);
        let load = match loads {
            Some(loads) => first(loads, "load")?,
            None => usable[1].last().copied().map_or_else(|| first(usable[1], "load"), Ok)?,
        };
        Ok(Cores { worker, service, load, two_machines: true })
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
        let Cores { worker, service, load, .. } = Cores::choose(usable, servers, loads).unwrap();
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
        let error = Cores::choose(&[0, 1], Some(&[2]), None).unwrap_err();
        assert!(error.contains("core 2"), "{error}");
    }

    #[test]
    fn shared_cores_are_detected() {
        let two = Cores::choose(&[0, 1], None, None).unwrap();
        assert!(!two.shared(false) && two.shared(true));
        let three = Cores::choose(&[0, 1, 2], None, None).unwrap();
        assert!(!three.shared(false) && !three.shared(true));
        assert!(Cores::choose(&[0], None, None).unwrap().shared(false));
        assert_eq!((two.servers(), three.servers()), (vec![0], vec![0, 1]));
    }

    #[test]
    fn machines_share_no_cores() {
        let cores = Cores::choose_on_two([&[0, 1], &[0, 1]], None, None).unwrap();
        assert_eq!((cores.worker, cores.service, cores.load), (0, 1, 1));
        assert!(!cores.shared(false) && !cores.shared(true));
        let few = Cores::choose_on_two([&[0], &[0]], None, None).unwrap();
        assert!(!few.shared(false) && few.shared(true));
        let named = Cores::choose_on_two([&[0, 1, 2], &[4]], Some(&[2]), Some(&[4])).unwrap();
        assert_eq!((named.worker, named.service, named.load), (2, 2, 4));
        let error = Cores::choose_on_two([&[0], &[0]], None, Some(&[1])).unwrap_err();
        assert!(error.contains("--load-cores: core 1"), "{error}");
        assert!(Cores::choose_on_two([&[0], &[]], None, None).is_err());
    }
}
