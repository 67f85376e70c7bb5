"""Numbers in planes, for no kernel knows a complex dtype: one array of reals, or two, the real and imaginary parts."""

import jax.numpy as jnp
from jax import Array

Planes = tuple[Array, ...]
ONE = (1.0, 0.0)  # in planes


def times(a: Planes, b: Planes) -> Planes:
    """The product of two real or of two complex numbers."""
    if len(a) == 1:
        return (a[0] * b[0],)
    (a_re, a_im), (b_re, b_im) = a, b
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


def plus(a: Planes, b: Planes) -> Planes:
    """The sum."""
    return tuple(one + other for one, other in zip(a, b, strict=True))


def scaled(scale: Array, z: Planes) -> Planes:
    """The product with a real number."""
    return tuple(scale * plane for plane in z)


def conjugate(z: Planes) -> Planes:
    """The conjugate: of a real number, itself."""
    re, *im = z
    return (re, *(-plane for plane in im))


def inner(a: Planes, b: Planes) -> Array:
    """Re(conj(a) b): what a change b is worth where the gradient is a."""
    first, *rest = (one * other for one, other in zip(a, b, strict=True))
    return sum(rest, start=first)


def float32(z: Planes) -> Planes:
    """The same numbers in float32."""
    return tuple(plane.astype(jnp.float32) for plane in z)
