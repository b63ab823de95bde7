//! Fields of tracepoint records, whose offsets the agent reads from tracefs `format` files.

/// A field: index into the kernel half's table of offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "each variant is described by its row in FIELDS")]
pub enum Field {
    TcpProbeSaddr,
    TcpProbeDaddr,
    TcpProbeSport,
    TcpProbeDport,
    TcpProbeFamily,
    TcpProbeDataLen,
    TcpProbeSrtt,
    StateOld,
    StateNew,
    StateSport,
    StateDport,
    StateFamily,
    StateProtocol,
    StateSaddr,
    StateDaddr,
    StateSaddrV6,
    StateDaddrV6,
    RetransmitSport,
    RetransmitDport,
    RetransmitFamily,
    RetransmitSaddr,
    RetransmitDaddr,
    RetransmitSaddrV6,
    RetransmitDaddrV6,
    NewTaskPid,
    NewTaskCloneFlags,
    ExitGroupDead,
    ExecOldPid,
    SwitchPrevState,
    SwitchNextPid,
    WakingPid,
    WakeupNewPid,
}

/// Number of fields.
pub const FIELD_COUNT: usize = 32;

/// Offset of a field that this kernel's record does not have.
pub const ABSENT: u32 = u32::MAX;

/// One row of [`FIELDS`].
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Tracepoint category.
    pub category: &'static str,
    /// Tracepoint name.
    pub event: &'static str,
    /// Name of the field in the `format` file.
    pub name: &'static str,
    /// Bytes that the kernel half reads there.
    pub size: u32,
}

const fn row(
    category: &'static str,
    event: &'static str,
    name: &'static str,
    size: u32,
) -> FieldInfo {
    FieldInfo { category, event, name, size }
}

/// Every field, in the order of [`Field`].
pub const FIELDS: [FieldInfo; FIELD_COUNT] = [
    row("tcp", "tcp_probe", "saddr", 28),
    row("tcp", "tcp_probe", "daddr", 28),
    row("tcp", "tcp_probe", "sport", 2),
    row("tcp", "tcp_probe", "dport", 2),
    row("tcp", "tcp_probe", "family", 2),
    row("tcp", "tcp_probe", "data_len", 2),
    row("tcp", "tcp_probe", "srtt", 4),
    row("sock", "inet_sock_set_state", "oldstate", 4),
    row("sock", "inet_sock_set_state", "newstate", 4),
    row("sock", "inet_sock_set_state", "sport", 2),
    row("sock", "inet_sock_set_state", "dport", 2),
    row("sock", "inet_sock_set_state", "family", 2),
    row("sock", "inet_sock_set_state", "protocol", 2),
    row("sock", "inet_sock_set_state", "saddr", 4),
    row("sock", "inet_sock_set_state", "daddr", 4),
    row("sock", "inet_sock_set_state", "saddr_v6", 16),
    row("sock", "inet_sock_set_state", "daddr_v6", 16),
    row("tcp", "tcp_retransmit_skb", "sport", 2),
    row("tcp", "tcp_retransmit_skb", "dport", 2),
    row("tcp", "tcp_retransmit_skb", "family", 2),
    row("tcp", "tcp_retransmit_skb", "saddr", 4),
    row("tcp", "tcp_retransmit_skb", "daddr", 4),
    row("tcp", "tcp_retransmit_skb", "saddr_v6", 16),
    row("tcp", "tcp_retransmit_skb", "daddr_v6", 16),
    row("task", "task_newtask", "pid", 4),
    row("task", "task_newtask", "clone_flags", 8),
    row("sched", "sched_process_exit", "group_dead", 1),
    row("sched", "sched_process_exec", "old_pid", 4),
    row("sched", "sched_switch", "prev_state", 8),
    row("sched", "sched_switch", "next_pid", 4),
    row("sched", "sched_waking", "pid", 4),
    row("sched", "sched_wakeup_new", "pid", 4),
];
