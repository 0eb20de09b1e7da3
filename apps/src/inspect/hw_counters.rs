//! Counters that the kernel keeps for RDMA ports, such as retransmissions and receiver-not-ready replies.

use super::metrics::escaped;
use linerate_service::Verbs;
use linerate_service::inspect::Snapshot;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Directory of the RDMA devices of this machine.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Metric with the labels of a counter.
const NAME: &str = "linerate_rdma_hw_counter";

/// Formats the counters of all ports in `devices`, if one of the workers uses RDMA. Counters that cannot be read are
/// omitted.
pub fn page(devices: &Path, snapshots: &[Option<Snapshot>]) -> String {
    let uses_rdma = |snapshot: &Snapshot| snapshot.summary.verbs != Verbs::default();
    if !snapshots.iter().flatten().any(uses_rdma) {
        return String::new();
    }
    let mut lines = String::new();
    for device in names(devices) {
        let ports = devices.join(&device).join("ports");
        for port in names(&ports) {
            let counters = ports.join(&port).join("hw_counters");
            for counter in names(&counters) {
                let value = fs::read_to_string(counters.join(&counter)).ok();
                // The directory also has the lifespan of cached values, which is no counter.
                let value = value.and_then(|text| text.trim().parse::<u64>().ok()).filter(|_| counter != "lifespan");
                if let Some(value) = value {
                    let [device, port, counter] = [&device, &port, &counter].map(|label| escaped(label));
                    let _ =
                        writeln!(lines, "{NAME}{{device=\"{device}\",port=\"{port}\",counter=\"{counter}\"}} {value}");
                }
            }
        }
    }
    if lines.is_empty() {
        return lines;
    }
    format!("# HELP {NAME} Counter of the kernel for an RDMA port, from sysfs.\n# TYPE {NAME} counter\n{lines}")
}

/// Returns the names in a directory, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(posts: u64) -> Vec<Option<Snapshot>> {
        let mut snapshot = Snapshot::default();
        snapshot.summary.verbs.posts = posts;
        vec![None, Some(snapshot)]
    }

    #[test]
    fn counters_of_every_port_are_listed_while_rdma_is_used() {
        let devices = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("mlx5_0/ports/1/hw_counters/out_of_sequence", "7\n"),
            ("mlx5_0/ports/1/hw_counters/lifespan", "10\n"),
            ("mlx5_0/ports/1/hw_counters/odd", "N/A\n"),
            ("rxe0/ports/1/hw_counters/rcvd_rnr_err", "2\n"),
        ] {
            let path = devices.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let page = |posts| super::page(devices.path(), &snapshot(posts));
        assert_eq!(page(0), "");
        let lines: Vec<String> = page(1).lines().map(str::to_owned).collect();
        assert_eq!(
            lines[2..],
            [
                "linerate_rdma_hw_counter{device=\"mlx5_0\",port=\"1\",counter=\"out_of_sequence\"} 7",
                "linerate_rdma_hw_counter{device=\"rxe0\",port=\"1\",counter=\"rcvd_rnr_err\"} 2",
            ]
        );
        assert!(lines[0].starts_with("# HELP linerate_rdma_hw_counter ") && lines[1].starts_with("# TYPE"));
        assert_eq!(super::page(&devices.path().join("none"), &snapshot(1)), "");
    }
}
