//! Nodes of graphs: adding them, asking about them, changing their parameters.

use std::ffi::{c_int, c_uint};

use super::{copy, launch, memset};
use crate::abi::{
    Handle, HostNodeParams, In, KernelNodeParams, KernelNodeParamsV2, Memcpy3D, MemsetNodeParams,
    Out,
};
use crate::error::{INVALID_VALUE, Res};
use crate::graph::NodeRef;
use crate::oracle::Kind;
use crate::schedule::{HostCall, Work};
use crate::sim::{Sim, lock};
use crate::stubs::exports;

exports! {
    cuGraphAddKernelNode@10000
        fn(_s, out: Out<Handle>, graph: Handle, after: In<Handle>, n: usize,
         params: In<KernelNodeParams>) => {
        let params = params.get()?;
        add(out, graph, after, n, |sim| launch::work(sim, &params))
    };
    cuGraphAddKernelNode_v2@12000
        fn(_s, out: Out<Handle>, graph: Handle, after: In<Handle>, n: usize,
         params: In<KernelNodeParamsV2>) => {
        let params = kernel_params(params.get()?);
        add(out, graph, after, n, |sim| launch::work(sim, &params))
    };
    cuGraphAddMemcpyNode@10000
        fn(_s, out: Out<Handle>, graph: Handle, after: In<Handle>, n: usize,
         params: In<Memcpy3D>, _ctx: Handle) => {
        let params = params.get()?;
        add(out, graph, after, n, |sim| copy::node_work(sim, &params))
    };
    cuGraphAddMemsetNode@10000
        fn(_s, out: Out<Handle>, graph: Handle, after: In<Handle>, n: usize,
         params: In<MemsetNodeParams>, _ctx: Handle) => {
        let params = params.get()?;
        add(out, graph, after, n, |sim| memset::node_work(sim, &params))
    };
    cuGraphAddHostNode@10000
        fn(_s, out: Out<Handle>, graph: Handle, after: In<Handle>, n: usize,
         params: In<HostNodeParams>) => {
        let HostNodeParams { func, data } = params.get()?;
        if func.is_none() {
            return Err(INVALID_VALUE);
        }
        let call = HostCall { func, callback: None, stream: 0, data };
        add(out, graph, after, n, |_| Ok(Work { host: Some(call), ..Work::marker(Kind::Host) }))
    };
    cuGraphAddEmptyNode@10000
        fn(_s, out: Out<Handle>, graph: Handle, after: In<Handle>, n: usize) =>
        add(out, graph, after, n, |_| Ok(Work::marker(Kind::Empty)));
    cuGraphExecKernelNodeSetParams@10010
        fn(_s, exec: Handle, node: Handle, params: In<KernelNodeParams>) =>
        set_exec_params(exec, node, params.get()?);
    cuGraphExecKernelNodeSetParams_v2@12000
        fn(_s, exec: Handle, node: Handle, params: In<KernelNodeParamsV2>) =>
        set_exec_params(exec, node, kernel_params(params.get()?));
    cuGraphKernelNodeSetParams@10000 fn(_s, node: Handle, params: In<KernelNodeParams>) =>
        set_params(node, params.get()?);
    cuGraphKernelNodeSetParams_v2@12000 fn(_s, node: Handle, params: In<KernelNodeParamsV2>) =>
        set_params(node, kernel_params(params.get()?));
    cuGraphGetNodes@10000 fn(_s, graph: Handle, nodes: Out<Handle>, count: Out<usize>) =>
        list(graph, nodes, count, false);
    cuGraphGetRootNodes@10000 fn(_s, graph: Handle, nodes: Out<Handle>, count: Out<usize>) =>
        list(graph, nodes, count, true);
    cuGraphNodeGetType@10000 fn(_s, node: Handle, out: Out<c_int>) => {
        let sim = lock();
        out.put(match work_of(&sim, node)?.kind {
            Kind::Kernel => 0,
            Kind::H2D | Kind::D2H | Kind::D2D | Kind::H2H => 1,
            Kind::Memset => 2,
            Kind::Host => 3,
            _ => 5,
        })
    };
    cuGraphNodeGetDependencies@10000
        fn(_s, node: Handle, nodes: Out<Handle>, count: Out<usize>) =>
        dependencies(node, nodes, count);
    cuGraphNodeGetDependencies_v2@12030
        fn(_s, node: Handle, nodes: Out<Handle>, _edges: Out<u64>, count: Out<usize>) =>
        dependencies(node, nodes, count);
    cuGraphNodeGetLocalId@13010 fn(_s, node: Handle, id: Out<c_uint>) =>
        id.put(lock().nodes.get(node)?.index as c_uint);
}

/// A kernel may be named by either field.
fn kernel_params(v2: KernelNodeParamsV2) -> KernelNodeParams {
    let func = if v2.v1.func == 0 { v2.kern } else { v2.v1.func };
    KernelNodeParams { func, ..v2.v1 }
}

fn add(
    out: Out<Handle>,
    graph: Handle,
    after: In<Handle>,
    n: usize,
    work: impl FnOnce(&Sim) -> Res<Work>,
) -> Res {
    out.check()?;
    let after = after.list(n)?;
    let mut sim = lock();
    let after = sim.node_indexes(graph, &after)?;
    let work = work(&sim)?;
    let index = sim.add_node(graph, work, after)?;
    let handle = sim.graphs.get(graph)?.nodes.get(index).map_or(0, |n| n.handle);
    out.put(handle)
}

fn work_of(sim: &Sim, node: Handle) -> Res<&Work> {
    let NodeRef { graph, index } = *sim.nodes.get(node)?;
    sim.graphs.get(graph)?.nodes.get(index).map(|n| &n.work).ok_or(INVALID_VALUE)
}

fn set_params(node: Handle, params: KernelNodeParams) -> Res {
    let mut sim = lock();
    let work = launch::work(&sim, &params)?;
    let NodeRef { graph, index } = *sim.nodes.get(node)?;
    let node = sim.graphs.get_mut(graph)?.nodes.get_mut(index).ok_or(INVALID_VALUE)?;
    replace_kernel(&mut node.work, work)
}

fn set_exec_params(exec: Handle, node: Handle, params: KernelNodeParams) -> Res {
    let mut sim = lock();
    let work = launch::work(&sim, &params)?;
    let NodeRef { graph, index } = *sim.nodes.get(node)?;
    let exec = sim.execs.get_mut(exec)?;
    if exec.graph != graph {
        return Err(INVALID_VALUE);
    }
    let node = exec.nodes.get_mut(index).ok_or(INVALID_VALUE)?;
    replace_kernel(&mut node.work, work)
}

fn replace_kernel(old: &mut Work, new: Work) -> Res {
    if old.kind != Kind::Kernel {
        return Err(INVALID_VALUE);
    }
    *old = new;
    Ok(())
}

fn list(graph: Handle, nodes: Out<Handle>, count: Out<usize>, roots: bool) -> Res {
    let sim = lock();
    let all = &sim.graphs.get(graph)?.nodes;
    let found: Vec<Handle> =
        all.iter().filter(|n| !roots || n.after.is_empty()).map(|n| n.handle).collect();
    give(&found, nodes, count)
}

fn dependencies(node: Handle, nodes: Out<Handle>, count: Out<usize>) -> Res {
    let sim = lock();
    let NodeRef { graph, index } = *sim.nodes.get(node)?;
    let all = &sim.graphs.get(graph)?.nodes;
    let after = &all.get(index).ok_or(INVALID_VALUE)?.after;
    let found: Vec<Handle> = after.iter().filter_map(|&i| Some(all.get(i)?.handle)).collect();
    give(&found, nodes, count)
}

/// The driver's way of giving lists: asked without an array it only counts; room left over is
/// filled with nulls.
fn give(found: &[Handle], out: Out<Handle>, count: Out<usize>) -> Res {
    if out.is_null() {
        return count.put(found.len());
    }
    let room = count.get()?;
    for i in 0..room {
        out.put_at(i, found.get(i).copied().unwrap_or(0))?;
    }
    count.put(found.len().min(room))
}
