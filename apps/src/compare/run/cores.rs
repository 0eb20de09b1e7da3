//! Which core each thread has, the same for every row.

/// The cores of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// Of the server's worker.
    pub worker: usize,
    /// Of the service, where it has a thread of its own.
    pub service: usize,
    /// Of the load.
    pub load: usize,
}

impl Cores {
    /// Out of the `usable` cores, or as `servers` and `loads` say: one core each of those; a second of the servers' is the service's.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn choose(usable: &[usize], servers: Option<&[usize]>, loads: Option<&[usize]>) -> Result<Cores, String> {
        let given = [("--server-cores", servers), ("--load-cores", loads)];
        for (option, cores) in given {
            if let Some(core) = cores.into_iter().flatten().find(|core| !usable.contains(core)) {
                return Err(format!("{option}: core {core} may not be used: name one of {usable:?}"));
            }
        }
        let load = match loads {
            Some(loads) => loads[0],
            // The server's come from the other end.
            None => *usable
                .iter()
                .rev()
                .find(|core| !servers.is_some_and(|servers| servers.contains(core)))
                .or(usable.last())
                .ok_or("no core may be used")?,
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
        Ok(Cores { worker, service, load })
    }

    /// Those of servers, as results name them.
    pub fn servers(&self) -> Vec<usize> {
        if self.service == self.worker { vec![self.worker] } else { vec![self.worker, self.service] }
    }

    /// Whether polling threads share a core: those of a server with a service on a thread of its own, if `split`.
    pub fn shared(&self, split: bool) -> bool {
        self.worker == self.load || split && (self.service == self.worker || self.service == self.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(usable: &[usize], servers: Option<&[usize]>, loads: Option<&[usize]>) -> (usize, usize, usize) {
        let Cores { worker, service, load } = Cores::choose(usable, servers, loads).unwrap();
        (worker, service, load)
    }

    #[test]
    fn each_thread_has_a_core_where_there_are_so_many() {
        assert_eq!(chosen(&[0, 1, 2, 3], None, None), (0, 1, 3));
        assert_eq!(chosen(&[4, 5, 6], None, None), (4, 5, 6));
        assert_eq!(chosen(&[0, 1], None, None), (0, 0, 1));
        assert_eq!(chosen(&[7], None, None), (7, 7, 7));
    }

    #[test]
    fn cores_that_are_named_are_taken() {
        assert_eq!(chosen(&[0, 1, 2, 3], Some(&[3]), None), (3, 3, 2));
        assert_eq!(chosen(&[0, 1, 2, 3], Some(&[2, 3]), Some(&[0])), (2, 3, 0));
        assert_eq!(chosen(&[0, 1, 2, 3], None, Some(&[0])), (1, 2, 0));
        let error = Cores::choose(&[0, 1], Some(&[2]), None).unwrap_err();
        assert!(error.contains("core 2"), "{error}");
    }

    #[test]
    fn sharing_is_seen() {
        let two = Cores::choose(&[0, 1], None, None).unwrap();
        assert!(!two.shared(false) && two.shared(true));
        let three = Cores::choose(&[0, 1, 2], None, None).unwrap();
        assert!(!three.shared(false) && !three.shared(true));
        assert!(Cores::choose(&[0], None, None).unwrap().shared(false));
        assert_eq!((two.servers(), three.servers()), (vec![0], vec![0, 1]));
    }
}
