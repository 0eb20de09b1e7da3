//! Packets that Soft-RoCE's reliable connections send again when the client's packets are lost at random.

use super::Suite;
use super::pair::{DEVICE, INTERFACE, Pair, Provider};
use super::service::{ECHO, Service};
use crate::error::{Result, failed};
use crate::host::Lab;
use crate::machine::Machine;
use crate::report::Report;

/// Part that can be run alone.
pub const SUITE: Suite = Suite { name: "rxe-loss", about: "packets that Soft-RoCE sends again under loss", run };

/// Bulk data in messages.
const BULK: Service = Service { name: "discard", port: 9, load: "", connections: 1, seconds: 5, ..ECHO };
/// Percentages of lost packets of the client. Without loss, nothing is sent again.
const LOSS: [&str; 3] = ["0", "0.1", "1"];
/// Packets of a message: its buffer of 4 kB, by the path MTU of 1 kB.
const PACKETS: i64 = 4;
/// Largest share of packets that seem to be sent again without loss, due to messages that are not full.
const TOLERANCE: f64 = 0.005;

fn run(lab: &Lab, report: &mut Report) {
    let Some(pair) = report.case("two guests", || Pair::boot(lab, Provider::Rxe)) else { return };
    for loss in LOSS {
        let counts = report.case(&format!("{loss} % of the packets are lost"), || {
            let counts = count(lab, &pair, loss)?;
            let is_valid = loss != "0" || counts.lost == 0 && counts.resent().abs() < TOLERANCE;
            if is_valid { Ok(counts) } else { failed(format!("packets are sent again without loss: {counts:?}")) }
        });
        if let Some(counts) = counts {
            println!("   {:.5} packets sent again per packet delivered; {counts:?}", counts.resent());
        }
    }
}

/// Counts of a transfer, in packets.
#[derive(Debug)]
struct Counts {
    sent: i64,
    delivered: i64,
    lost: i64,
}

impl Counts {
    fn resent(&self) -> f64 {
        (self.sent - self.delivered) as f64 / self.delivered as f64
    }
}

/// Counters of the devices: packets sent and messages received by the client, and messages received by the server.
fn counters(pair: &Pair) -> Result<[i64; 3]> {
    let read = |machine: &Machine, counter| {
        let script = format!("cat /sys/class/infiniband/{DEVICE}/ports/1/hw_counters/{counter}");
        number(&machine.run(counter, &script)?.stdout)
    };
    let client = &pair.client;
    Ok([read(client, "sent_pkts")?, read(client, "rdma_recvs")?, read(&pair.server, "rdma_recvs")?])
}

/// Transfers data. The client sends a packet for each message that it receives, and the others carry data.
fn count(lab: &Lab, pair: &Pair, loss: &str) -> Result<Counts> {
    let arguments = "--rdma-rendezvous-min never";
    let server = pair.serve(lab, BULK, arguments)?;
    let netem = format!("modprobe sch_netem; tc qdisc replace dev {INTERFACE} root netem loss {loss}% limit 100000");
    pair.client.run("loss", &netem)?;
    let before = counters(pair)?;
    let load = pair.load(lab, BULK, arguments)?.succeed()?.last_json()?;
    let lost = pair.client.run("lost", &format!("tc -s qdisc show dev {INTERFACE} | grep -o 'dropped [0-9]*'"))?;
    let after = counters(pair)?;
    pair.client.run("no loss", &format!("tc qdisc del dev {INTERFACE} root"))?;
    server.stop()?;
    if load["errors"] != 0 || load["bytes_up"] == 0 {
        return failed(format!("the load reports {load}"));
    }
    let [sent, received, messages] = std::array::from_fn(|at| after[at] - before[at]);
    Ok(Counts { sent: sent - received, delivered: PACKETS * messages, lost: number(&lost.stdout)? })
}

fn number(text: &str) -> Result<i64> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    match digits.parse() {
        Ok(number) => Ok(number),
        Err(_) => failed(format!("not a counter: {text:?}")),
    }
}
