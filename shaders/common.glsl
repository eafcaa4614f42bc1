// Included first by every shader. Before the #include, a shader has #version 450, #extension GL_GOOGLE_include_directive : require, and
// #define PUSH with the name of its block in params.h.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require  // [[unroll]], because arrays in registers need constant indices

#include "params.h"

layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { PUSH p; };

const uint LANES = gl_WorkGroupSize.x;
#define LANE gl_LocalInvocationIndex

// Returns the index of this workgroup among all groups of the operation. The host may cut these groups into several dispatches. The
// host arranges the groups of a dispatch in a grid of x times y groups, which may have up to x - 1 groups too many. So every main() begins
// with `if (group() >= p.groups) return;`.
uint group() { return p.first_group + gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }

// workgroup_add() returns the sum of x over all lanes of the workgroup, and workgroup_max() returns the maximum. All lanes must call these
// functions, and all lanes get the result. Subgroups may have any size, so their results are combined in shared memory.
shared float reduce_shared[LANES];
float workgroup_add(float x) {
  x = subgroupAdd(x);
  if (gl_NumSubgroups == 1) return x;
  barrier();  // other lanes may still be reading reduce_shared in an earlier call
  if (subgroupElect()) reduce_shared[gl_SubgroupID] = x;
  barrier();
  x = reduce_shared[0];
  for (uint i = 1; i < gl_NumSubgroups; ++i) x += reduce_shared[i];
  return x;
}
float workgroup_max(float x) {
  x = subgroupMax(x);
  if (gl_NumSubgroups == 1) return x;
  barrier();
  if (subgroupElect()) reduce_shared[gl_SubgroupID] = x;
  barrier();
  x = reduce_shared[0];
  for (uint i = 1; i < gl_NumSubgroups; ++i) x = max(x, reduce_shared[i]);
  return x;
}
